"""State: what a kernel has no business to change in the process that calls it."""

import builtins
import gc
import locale
import logging
import math
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, _tensor_str
from torch.nn import functional
from torch.utils import _python_dispatch

# what others call by name: a candidate that replaces one of these changes more than its own results
_PATCHABLE = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.cuda": torch.cuda,
    "torch.autograd": torch.autograd,
    "torch.testing": torch.testing,
    "torch.nn.functional": functional,
    "builtins": builtins,
    "math": math,
    "os": os,
    "sys": sys,
    "time": time,
    "random": random,
    "numpy": np,
}
FLAGS = (
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cudnn.enabled",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.mkldnn.enabled",
    "torch.utils.deterministic.fill_uninitialized_memory",
)

_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
_OTHERS_MAY_READ = 0o077
# less than half of what 1 is apart from its neighbours on either side
_LITTLE = (2.0**-54, 2.0**-55)

_THREADS = "threads that still run"

State = dict[str, Any]
_modes: Any = vars(_python_dispatch)["_get_current_dispatch_mode_stack"]


def modes() -> State:
    """The settings that a caller's context sets: at its end they are set back, whoever set them."""
    return {
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "autocast's dtype": [torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")],
        "number of threads": torch.get_num_threads(),
    }


def settings() -> State:
    """Settings by name; those of torch's numbers, of random numbers and of the process."""
    found: State = {
        **modes(),
        **_settings_of_process(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "torch's modes": len(_modes()),
        "random state": torch.get_rng_state().numpy().tobytes(),
        "numpy's random state": _numpy_random(),
        "Python's random state": random.getstate(),
        "deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "subnormal numbers": float(torch.tensor(1e-40) * 1) > 0,
        "number of threads between operations": torch.get_num_interop_threads(),
        "numpy's handling of errors": np.geterr(),
        "numpy's print options": np.get_printoptions(),
        "torch's print options": dict(vars(_tensor_str.PRINT_OPTS)),
        "warnings that torch repeats": torch.is_warn_always_enabled(),
        "kernels of torch's attention": [
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ],
    }
    if torch.cuda.is_available():
        found["random state of the GPU"] = torch.cuda.get_rng_state().numpy().tobytes()
        found["current GPU"] = torch.cuda.current_device()
        found["current stream"] = torch.cuda.current_stream().cuda_stream
    for flag in FLAGS:
        found[flag] = _look_up(flag)
    for name, owner in _PATCHABLE.items():
        # a copy: while other threads call, torch imports names into its modules
        found[name] = {key: value for key, value in dict(vars(owner)).items() if callable(value)}
    found["warning filters"] = list(warnings.filters)
    found["all warnings ignored"] = any(
        (action, message, category, module) == ("ignore", None, Warning, None)
        for action, message, category, module, _ in warnings.filters
    )
    return found


def _settings_of_process() -> State:
    """Python's and the operating system's; the affinity only where there is one."""
    mask = os.umask(_OTHERS_MAY_READ)
    os.umask(mask)
    root, (little, less) = logging.getLogger(), _LITTLE
    affinity = {"CPU affinity": os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else {}
    return {
        "environment variables": dict(os.environ),
        "current folder": os.getcwd(),
        "module search path": list(sys.path),
        "standard streams": (sys.stdin, sys.stdout, sys.stderr),
        "garbage collection": (gc.isenabled(), gc.get_threshold()),
        "recursion limit": sys.getrecursionlimit(),
        "thread switch interval": sys.getswitchinterval(),
        "locale": locale.setlocale(locale.LC_ALL),
        "a trace function": (sys.gettrace(), sys.getprofile()),
        "logging": (root.level, list(root.handlers), root.manager.disable),
        "rounding of floats": (1 + little, -1 - little, 1 - less),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "umask": mask,
        "nice value": os.getpriority(os.PRIO_PROCESS, 0),
        "resource limits": [resource.getrlimit(each) for each in _LIMITS],
        _THREADS: set(threading.enumerate()),
        **affinity,
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs; of modules, which of their names have another value."""
    found: list[str] = []
    for name, was in before.items():
        if name == _THREADS:
            # one that ends meanwhile was begun by somebody else
            if now[name] - was:
                found.append(name)
            continue
        if name not in _PATCHABLE:
            if now[name] != was:
                found.append(name)
            continue
        # names that were not there are imported lazily, by torch itself
        found += [
            f"{name}.{key}" for key, value in was.items() if now[name].get(key, value) is not value
        ]
        found += [f"{name}.{key}" for key in was if key not in now[name]]
    return found


def looks(arguments: Mapping[str, Any]) -> State:
    """What a call has no business to change about its tensors, beside their numbers."""
    found = State()
    for name, tensor in arguments.items():
        if isinstance(tensor, Tensor):
            found |= {
                f"where {name} lies in memory": (tensor.data_ptr(), tensor.storage_offset()),
                f"the shape or strides of {name}": (tensor.shape, tensor.stride()),
                f"the dtype of {name}": tensor.dtype,
                f"whether {name} wants a gradient": (tensor.requires_grad, tensor.grad_fn),
                f"the attributes of {name}": sorted(vars(tensor)),
            }
    return found


def _numpy_random() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return (kind, np.asarray(keys).tobytes(), *rest)


def _look_up(path: str) -> Any:
    owner: Any = sys.modules["torch"]
    for name in path.split(".")[1:]:
        owner = getattr(owner, name)
    return owner
