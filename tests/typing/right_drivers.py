"""Clients, pools and engines of the drivers are stores to a type checker."""

# pyright: strict

import psycopg_pool
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster
import sqlalchemy
import sqlalchemy.ext.asyncio

import incumbent


def own_wrapper(store: incumbent.StoreLike) -> incumbent.Lock:
    return incumbent.Lock("job", store=store)


def each_store(
    blocking: redis.Redis,
    asynchronous: redis.asyncio.Redis,
    pool: redis.ConnectionPool,
    cluster: redis.cluster.RedisCluster,
    async_cluster: redis.asyncio.cluster.RedisCluster,
    postgres: psycopg_pool.ConnectionPool,
    async_postgres: psycopg_pool.AsyncConnectionPool,
    engine: sqlalchemy.Engine,
    async_engine: sqlalchemy.ext.asyncio.AsyncEngine,
) -> None:
    own_wrapper(blocking)
    own_wrapper(asynchronous)
    own_wrapper(pool)
    own_wrapper(cluster)
    own_wrapper(async_cluster)
    own_wrapper(postgres)
    own_wrapper(async_postgres)
    own_wrapper(engine)
    own_wrapper(async_engine)
