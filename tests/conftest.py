"""Shared test setup: emulated CPU devices, one cache of programs, quick compiling, marks."""

import contextlib
import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator

# Must happen before JAX is imported anywhere: the flag is read once, when the backend starts.
if os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    )
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import jax
import pytest

from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache
from tests import durations, kept_programs, remembered_trees
from tests.kernels import h200_target

# A shell that starts the tests in the background may ignore Ctrl-C for them, and their child
# processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # it is not among what compiles for an H200, or runs there
    import hypothesis

    # An example of a property takes as long as the machine is busy.
    hypothesis.settings.register_profile("any time", deadline=None)
    hypothesis.settings.load_profile("any time")

jax.config.update("jax_numpy_dtype_promotion", "strict")

kept_programs.take_devices_as_equal()
remembered_trees.remember_trees()

# A worker soon holds millions of objects, mostly JAX's, and going through all of them takes half a
# second. By default that happens every few tests.
gc.set_threshold(2_000, 10, 100)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The flag that records durations, of a run of the whole suite."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write how long each test takes to tests/durations.json",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin, in the process that hears of all tests, what is of a run rather than of a worker."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if config.option.record_durations:
        config.pluginmanager.register(durations.Recorder())
    if os.environ["JAX_PLATFORMS"] == "cpu":
        # Workers and child processes find each other's programs in the engines' default directory.
        programs = kept_programs.KeptPrograms(config)
        os.environ["XDG_CACHE_HOME"] = str(programs.home)
        config.add_cleanup(programs.keep)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """Let Ctrl-C raise again after a command that has ended its process's handling of it."""
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def _little_optimization(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have LLVM optimize little: small models take far longer to compile than to run.

    XLA's own passes, which decide what is fused, copied and donated, are the same. Files marked
    `optimized` get what a user gets: they compare bits over many shapes, or run for long. Child
    processes do as the file that starts them.
    """
    # What runs on a GPU is measured, and what compiles for H200s is compared with bounds.
    for_speed = jax.default_backend() != "cpu" or h200_target.available()
    little = not for_speed and request.node.get_closest_marker("optimized") is None
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(little))
    jax.config.update("jax_disable_most_optimizations", little)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def programs_on_disk() -> Iterator[None]:
    """Find a module's own programs where engines' are; not for modules with an engine or a sampler.

    One thread at a time may be inside, and engines compile in theirs. A sampler may hold a sort,
    which XLA can't write.
    """
    with persistent_cache(None):
        yield


@pytest.fixture(scope="module")
def small_heap() -> None:
    """Leave what earlier tests hold out of `gc.collect()`, which takes a second with it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have every second worker collect backwards, to meet the others in the middle.

    In a fresh checkout pytest compiles every test file, for twenty seconds of a processor. Workers
    in step would each compile them all; from two ends, each finds half of them compiled.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and _worker() % 2:
        report.result.reverse()
    return report


def _worker() -> int:
    """The number of this worker of pytest-xdist; 0 in a process alone."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, skip what can't run here, and begin with the longest files.

    A test is slow, or exhaustive, by its mark or by recorded durations. Slow ones run where a `-m`
    or a test's own name is given, `exhaustive` ones where `-m` or the name of a case is. A test
    needs a GPU where JAX sees none, or the CUDA plugin without it. The longest files are first,
    because pytest-xdist hands them out in order and would end with one worker waiting for it.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # in the one order of all workers
        items.sort(key=lambda item: item.path.parts)
    for item in items:
        if durations.is_long(item.nodeid):
            item.add_marker(pytest.mark.slow)
        is_each = any(mark.args == ("each",) for mark in item.iter_markers("slow"))
        if item.nodeid in durations.left_to_releases() and not is_each:
            item.add_marker(pytest.mark.exhaustive)
    config.stash[durations.ALL_ITEMS] = list(items)
    chosen = config.option.markexpr
    if "exhaustive" not in chosen and not any("[" in argument for argument in config.args):
        _leave_out(config, items, "exhaustive")
    if not chosen and not any("::" in argument for argument in config.args):
        _leave_out(config, items, "slow")
    if jax.default_backend() != "gpu":
        _skip(items, "gpu", "needs an NVIDIA GPU (run scripts/gpu_check.py on one)")
    if not h200_target.available():
        _skip(items, "h200_compile", "needs JAX's CUDA plugin (run scripts/h200_compile.py)")
        seconds = durations.of_files()  # recorded where these tests are skipped
        items.sort(key=lambda item: -seconds.get(durations.file_of(item.nodeid), 0.0))


def _leave_out(config: pytest.Config, items: list[pytest.Item], mark: str) -> None:
    left_out = {item for item in items if item.get_closest_marker(mark)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _skip(items: list[pytest.Item], mark: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what is here to stay: thousands of tests, JAX, torch."""
    gc.collect()
    gc.freeze()
