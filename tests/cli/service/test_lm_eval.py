"""EleutherAI's lm-eval as a client: local tasks against a live server, tokens by its routes.

It is in the extra `clients`. `JAXINFER_LM_EVAL=path/to/lm_eval` takes one of another environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.service.running_service import RunningService

COMMAND = os.environ.get("JAXINFER_LM_EVAL") or str(Path(sys.executable).with_name("lm_eval"))
pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists(COMMAND), reason="needs lm_eval, of '.[clients]'"),
]
STORIES = ["Once upon a time", "The little girl", "One day, Tom and"]
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {directory}/{name}.jsonl
test_split: test
doc_to_text: "{{{{prompt}}}}"
"""
CHOICE = """\
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list:
  - metric: acc
"""
CONTINUATION = """\
output_type: generate_until
doc_to_target: "{{target}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 24
  do_sample: false
  temperature: 0
metric_list:
  - metric: exact_match
"""


@pytest.fixture(scope="module")
def service():
    running = RunningService("--enable-tokenizer-info")
    yield running
    running.close()


def continued(service, prompt):
    """The model's own continuation up to a full stop."""
    answer = service.client.completions.create(
        model="jaxinfer", prompt=prompt, max_tokens=24, temperature=0, stop="."
    )
    return answer.choices[0].text


def write_task(directory, name, text, documents):
    """A task of lm-eval in two files."""
    (directory / f"{name}.yaml").write_text(TASK.format(name=name, directory=directory) + text)
    lines = [json.dumps(document) for document in documents]
    (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def test_local_tasks_run_and_find_what_the_model_does(service, tmp_path):
    texts = [continued(service, story) for story in STORIES]
    choices = [[" qzx vlk 77", text] if i % 2 else [text, " qzx"] for i, text in enumerate(texts)]
    golds = [i % 2 for i in range(len(texts))]
    keys = ("prompt", "choices", "gold")
    documents = [
        dict(zip(keys, each, strict=True)) for each in zip(STORIES, choices, golds, strict=True)
    ]
    write_task(tmp_path, "own_choice", CHOICE, documents)
    documents = [
        {"prompt": prompt, "target": text} for prompt, text in zip(STORIES, texts, strict=True)
    ]
    write_task(tmp_path, "own_continuation", CONTINUATION, documents)
    served = f"model=jaxinfer,base_url={service.url}/v1/completions,tokenizer_backend=remote"
    command = [
        *(COMMAND, "run", "--model", "local-completions", "--tasks", "own_choice,own_continuation"),
        *("--model_args", f"{served},num_concurrent=2,max_retries=1,max_length=512"),
        *("--include_path", str(tmp_path), "--output_path", str(tmp_path / "results")),
    ]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment | offline,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "results").rglob("results_*.json")
    results = json.loads(file.read_text())["results"]
    assert results["own_choice"]["acc,none"] == 1.0
    assert results["own_continuation"]["exact_match,none"] == 1.0
