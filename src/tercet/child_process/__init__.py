"""Python child processes: start one, send requests, receive replies, end it and all it started.

`child.py` is the parent's side. `serve.py` is the program that the child runs. `fork_server.py` has
children that are forks of a process which has imported torch already. `confine.py` closes a process
in; `untrusted.py` runs a program that nobody has read.
"""

from tercet.child_process.child import Child, ChildError

__all__ = ["Child", "ChildError"]
