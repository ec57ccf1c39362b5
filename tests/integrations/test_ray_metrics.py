"""An engine's numbers become Ray's: gauges as they are, counters by what they have grown."""

from jaxinfer.integrations.ray_metrics import RayMetrics
from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram


class _Kinds:
    """Stands for `ray.serve.metrics`; notes what its metrics are told."""

    def __init__(self):
        self.told = []
        self.Gauge, self.Counter = self._kind("gauge"), self._kind("counter")

    def _kind(self, kind):
        told = self.told

        class Made:
            def __init__(self, name, tag_keys):
                self.name = name
                told.append(("made", kind, name, tag_keys))

            def set(self, value, tags):
                told.append((self.name, value, tags))

            def inc(self, value, tags):
                assert value > 0
                told.append((self.name, value, tags))

        return Made


def test_gauges_are_set_and_made_once():
    kinds = _Kinds()
    metrics = RayMetrics(kinds)
    metrics.update([Gauge("jaxinfer:num_requests_running", 3)])
    metrics.update([Gauge("jaxinfer:num_requests_running", 0)])
    name = "jaxinfer_num_requests_running"  # Ray takes no colons
    assert kinds.told == [("made", "gauge", name, ()), (name, 3, {}), (name, 0, {})]


def test_counters_count_on_each_label_by_itself():
    kinds = _Kinds()
    metrics = RayMetrics(kinds)
    stop, length = {"finished_reason": "stop"}, {"finished_reason": "length"}
    name = "jaxinfer:request_success"
    metrics.update([Counter(name, 5, stop), Counter(name, 1, length)])
    metrics.update([Counter(name, 7, stop), Counter(name, 1, length)])
    ours = "jaxinfer_request_success"
    assert kinds.told == [
        ("made", "counter", ours, ("finished_reason",)),
        (ours, 5, stop),
        (ours, 1, length),
        (ours, 2, stop),
    ]


def test_histograms_are_left_out():
    kinds = _Kinds()
    RayMetrics(kinds).update([Histogram("jaxinfer:engine_step_tokens", 1, 2.0, {"+Inf": 1})])
    assert kinds.told == []
