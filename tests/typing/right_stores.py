"""What a lock takes as its store has one name, which is the same everywhere."""

# pyright: strict

import incumbent
from incumbent.stores.memory import open_memory


def own_wrapper(store: incumbent.StoreLike | None) -> None:
    incumbent.Lock("job", store=store)
    incumbent.AsyncLock("job", store=store)
    incumbent.Semaphore("job", 4, store=store)
    incumbent.AsyncReadWriteLock("job", store=store)
    incumbent.Election("job", store=store)
    incumbent.AsyncElection("job", store=store)
    incumbent.Client(store)
    incumbent.AsyncClient(store)
    incumbent.Jobs(store)
    incumbent.exclusive("job", store=store)
    incumbent.once("job", per="1h", store=store)


own_wrapper(None)
own_wrapper("redis://localhost")
own_wrapper(open_memory("memory:"))
own_wrapper(incumbent.Client("memory:"))
own_wrapper(incumbent.AsyncClient("memory:"))
