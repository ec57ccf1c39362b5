"""Reads metrics as Prometheus does."""

from prometheus_client.parser import text_string_to_metric_families


def samples(exposition: bytes) -> dict[tuple[str, ...], float]:
    """Values by name and label values, without `model_name`."""
    found = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            found[(sample.name.removeprefix("jaxinfer:"), *labels.values())] = sample.value
    return found
