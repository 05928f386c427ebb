"""An API server of Kubernetes for the tests: a process of its own, before a real etcd.

There is no cluster where these tests run. `fake` answers as kube-apiserver does for Leases, and
for Pods and Namespaces as far as Leases need them. What it is modelled on is named in its files;
clients that others wrote judge it in tests/stores/kubernetes/test_judges.py. It has no server-side
apply, managedFields, JSON patches, protobuf or finalizers, and of RBAC only `deny`.
"""

from tests.support.kubernetes.server import ApiServer, Lease

__all__ = ["ApiServer", "Lease"]
