"""Leases in Kubernetes: one Lease object (coordination.k8s.io/v1) a name, and no other service.

`objects` has what stands in a Lease, and how other electors are honoured; `known` what a process
has seen of a namespace, which is its clock; `exchange` answers the requests of the register kit;
`watching` wakes waiters. Only a kubeconfig in YAML needs a package: PyYAML.
"""

from incumbent.stores.kubernetes.public import open_kubernetes

__all__ = ["open_kubernetes"]
