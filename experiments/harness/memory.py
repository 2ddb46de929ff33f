"""How much memory a step of a loss needs at its peak."""

from torch.profiler import ProfilerActivity, profile


def peak_memory(call):
    """Largest number of bytes that torch had allocated during a call, beyond those allocated before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
