"""The files of deploy/ parse, agree with each other, and name what the server has."""

import ast
import dataclasses
import json
import re
from pathlib import Path

import pytest
import yaml

from jaxinfer import serve
from jaxinfer.config import EngineConfig
from jaxinfer.planning.cost import ModelCost
from jaxinfer.planning.devices import Chip
from jaxinfer.server.telemetry.telemetry import Telemetry
from jaxinfer.server.telemetry.utilization import StepFloors
from jaxinfer.serving.engine.metrics import RequestCounts
from jaxinfer.serving.engine.step_counts import StepCounts
from tests.server.telemetry.scrape import samples

DEPLOY = Path(__file__).parent.parent / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "jaxinfer.json").read_text())
FLOORS = StepFloors(
    cost=ModelCost(
        weight_bytes=1,
        kv_bytes_per_token=1,
        layer_flops_per_token=1,
        head_flops_per_token=0,
        attention_flops_per_pair=1,
    ),
    chip=Chip(name="a chip", bytes_per_s=1.0, flops_per_s=1.0),
)


def expressions() -> list[str]:
    queries = [each["query"] for each in DASHBOARD["templating"]["list"] if "query" in each]
    return queries + [
        target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]
    ]


@pytest.fixture(scope="module")
def shown() -> set[str]:
    """Names of all samples that a server can show, without prefix."""
    steps = StepCounts(prefill_seconds=1.0, decode_seconds=1.0)
    metrics = RequestCounts(steps=steps).metrics(num_compilations=0, compile_seconds=0.0)
    return {name for name, *_ in samples(Telemetry("m", floors=FLOORS).render(metrics))}


def test_the_dashboard_asks_for_series_that_there_are(shown):
    asked = {name for each in expressions() for name in re.findall(r"jaxinfer:(\w+)", each)}
    assert asked
    assert asked <= shown


def test_the_dashboard_shows_what_there_is(shown):
    """A new metric belongs on it, or among the raw counts that others are made of."""
    asked = {name for each in expressions() for name in re.findall(r"jaxinfer:(\w+)", each)}
    raw = {"prefill_attention_pairs_total", "decode_context_tokens_total"}
    same_as_a_ratio = {"decode_mbu_perc", "prefill_mfu_perc"}

    def stems(names):
        return {re.sub("_(bucket|sum|count)$", "", name) for name in names}

    assert stems(shown) - stems(asked) == raw | same_as_a_ratio


def test_expressions_are_balanced_and_panels_do_not_overlap():
    for each in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert each.count(opening) == each.count(closing), each
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
    labels = {name for each in expressions() for name in re.findall(r"(\w+)=~?\"", each)}
    assert labels == {"model_name", "kind"}


def documents(*path: str) -> list[dict]:
    return list(yaml.safe_load_all(DEPLOY.joinpath(*path).read_text()))


def test_compose_mounts_files_that_there_are_and_scrapes_the_server():
    (compose,) = documents("docker-compose.yml")
    services = compose["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source == "./api-key":  # the user's
                continue
            assert source in compose["volumes"] or (DEPLOY / source).exists(), source
    assert (DEPLOY / services["jaxinfer"]["build"]["context"] / "deploy/Dockerfile").exists()
    name, *flags = services["jaxinfer"]["command"]
    assert name == "serve"
    assert serve.build_parser().parse_args(flags).host == "0.0.0.0"
    (prometheus,) = documents("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": ["jaxinfer:8000"]}]
    for name in ("datasources/prometheus.yml", "dashboards/jaxinfer.yml"):
        assert documents("grafana", "provisioning", *name.split("/"))[0]["apiVersion"] == 1


def test_kubernetes_probes_the_servers_own_routes():
    kinds = {each["kind"]: each for each in documents("kubernetes", "jaxinfer.yaml")}
    pod = kinds["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startup": "/ready",
        "liveness": "/health",
        "readiness": "/ready",
    }
    assert {probe["httpGet"]["port"] for probe in probes.values()} == {"http"}
    (port,) = container["ports"]
    arguments = container["args"]
    assert arguments[0] == "serve"
    flags = serve.build_parser().parse_args(arguments[1:])
    assert (flags.host, flags.port) == ("0.0.0.0", port["containerPort"])
    drain = int(arguments[arguments.index("--shutdown-timeout") + 1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > drain
    assert kinds["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["spec"]["volumes"]
    }


def test_the_monitor_selects_the_service():
    (monitor,) = documents("kubernetes", "monitoring.yaml")
    services = [d for d in documents("kubernetes", "jaxinfer.yaml") if d["kind"] == "Service"]
    assert monitor["spec"]["selector"]["matchLabels"] == services[0]["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == services[0]["spec"]["ports"][0]["name"]


def _keywords(path: Path, function: str) -> set[str]:
    """Names of a function's keyword arguments, in a file that may need Ray."""
    (found,) = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    return {each.arg for each in (*found.args.args, *found.args.kwonlyargs)}


def test_rays_service_names_what_there_is_and_ends_in_time():
    (service,) = documents("kubernetes", "ray-service.yaml")
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, function = application["import_path"].split(":")
    file = DEPLOY.parent.joinpath(*module.split(".")).with_suffix(".py")
    assert _keywords(file, function) == {"args"}
    engine = {field.name for field in dataclasses.fields(EngineConfig)}
    assert application["args"].keys() <= _keywords(file, "app") | engine
    cluster = service["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    (container,) = pod["containers"]
    assert workers["maxReplicas"] == application["args"]["max_replicas"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["terminationGracePeriodSeconds"] > application["args"]["shutdown_timeout"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in head["env"]] == ["JAXINFER_API_KEY"]
