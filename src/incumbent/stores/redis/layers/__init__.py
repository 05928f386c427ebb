"""What stands over the connections where one server is not enough: Sentinel, Cluster, replicas."""
