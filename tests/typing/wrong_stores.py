"""What is no store is an error for a type checker too."""

from pathlib import Path

import incumbent

incumbent.Lock("job", store=6379)  # E: arg-type reportArgumentType
incumbent.AsyncLock("job", store=Path("leases.db"))  # E: arg-type reportArgumentType
incumbent.Election("job", store=("localhost", 6379))  # E: arg-type reportArgumentType
incumbent.AsyncElection("job", store=object())  # E: arg-type reportArgumentType
incumbent.Client(b"redis://localhost")  # E: arg-type reportArgumentType
incumbent.AsyncClient({"host": "localhost"})  # E: arg-type reportArgumentType
incumbent.Jobs(6379)  # E: arg-type reportArgumentType
incumbent.once("job", per="1h", store=6379)  # E: arg-type reportArgumentType
incumbent.exclusive("job", store=6379)  # E: call-overload reportArgumentType
