"""Profile: where a call's time goes, by torch's profiler and Nsight Compute, put into words."""

from tercet.harness.profile.report import Advice, Counters, KernelTime, ProfileReport, Timeline
from tercet.harness.profile.run import profile

__all__ = ["Advice", "Counters", "KernelTime", "ProfileReport", "Timeline", "profile"]
