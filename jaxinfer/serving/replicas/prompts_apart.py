"""Has prefill replicas compute prompts before decode replicas get them with their requests."""

import collections
import dataclasses
from collections.abc import Callable, Sequence

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.prefix_tiers.handovers import Handover, Handovers
from jaxinfer.serving.replicas.front_queue import FrontRequest, Member
from jaxinfer.serving.replicas.router import ReplicaView, choose_replica, request_load
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.packed_ids import ID_BYTES

_JOB_PARAMS = SamplingParams(max_tokens=1, temperature=0.0)


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """A prompt that a prefill replica computes for a request.

    Attributes:
        request: whose `member` decodes it afterwards.
        member: the prefill replica; None once it is done.
        load: its part of that replica's load.
    """

    request: FrontRequest
    handover: Handover
    member: Member | None
    load: int


class PromptsApart:
    """The requests of a group whose prompts are on their way. One thread at a time, as the group.

    Args:
        handovers: of the group's engines.
        num_prefills: replicas that compute prompts, the last ones.
        block_size: tokens of a block.
        token_budget: most tokens of a replica's step.
        least_tokens: prompts of which a decode replica lacks fewer are computed there.
    """

    def __init__(
        self,
        handovers: Handovers,
        *,
        num_prefills: int,
        block_size: int,
        token_budget: int,
        least_tokens: int,
    ) -> None:
        self.handovers, self.num_prefills = handovers, num_prefills
        self._block_size, self._token_budget = block_size, token_budget
        self._least_tokens = max(least_tokens, block_size)
        self._jobs: dict[str, Job] = {}
        self._done: collections.deque[tuple[Job, RequestOutput]] = collections.deque()
        self._prefills: Sequence[Member] = ()
        self._wake: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        """Whether a prompt is on its way."""
        return bool(self._jobs)

    def attach(self, prefills: Sequence[Member], wake: Callable[[], None]) -> None:
        """Use these replicas, and wake the group by `wake`, from any thread."""
        self._prefills, self._wake = prefills, wake
        self.handovers.on_news = wake

    def begin(self, request: FrontRequest, num_cached_tokens: int) -> bool:
        """Send a request's prompt to a prefill replica; False if its own is to compute it.

        Args:
            request: with its `member`, which has it not yet.
            num_cached_tokens: leading tokens that this member has.
        """
        self._take_done()
        new, size = request.new, self._block_size
        first, stop = num_cached_tokens // size, (len(new.prompt.token_ids) - 1) // size
        num_missing = (stop - first) * size
        if not _may_be_apart(new) or num_missing < self._least_tokens:
            return False
        prefills = [each for each in self._prefills if each.replica.failure is None]
        if not prefills:
            self.handovers.note_recomputed()
            return False
        member, num_cached = self._choose(new, prefills)
        if stop * size - num_cached > 2 * num_missing:
            return False  # a long conversation that goes on where it is cached
        handover = self.handovers.begin(new.key, first, stop)
        if handover is None:
            return False
        return self._send(request, handover, member, handover.stop * size - num_cached)

    def take_ready(self) -> list[FrontRequest]:
        """Requests whose prompts are on their way no more, however that ended."""
        self._take_done()
        ready = [job for job in self._jobs.values() if job.handover.is_ready]
        for job in ready:
            del self._jobs[job.request.new.key]
        return [job.request for job in ready]

    def call_off(self, key: str) -> FrontRequest | None:
        """Have a request's own replica compute its prompt, if that is on its way."""
        job = self._jobs.pop(key, None)
        if job is None:
            return None
        self.handovers.end(key)
        if (member := job.member) is not None:
            engine = member.replica.engine
            member.replica.post(lambda: engine.abort(key))  # its step may be long
        return job.request

    def call_off_all(self) -> list[FrontRequest]:
        """The same for all."""
        requests = (self.call_off(key) for key in list(self._jobs))
        return [request for request in requests if request is not None]

    def call_off_on(self, member: Member) -> list[FrontRequest]:
        """The same for prompts of a prefill replica that has failed."""
        keys = [key for key, job in self._jobs.items() if job.member is member]
        lost = []
        for key in keys:
            job = self._jobs.pop(key)
            self._release(job)
            self.handovers.end(key)
            self.handovers.note_recomputed()
            lost.append(job.request)
        return lost

    def of_decoder(self, member: Member) -> list[FrontRequest]:
        """Requests that a decode replica would get."""
        return [job.request for job in self._jobs.values() if job.request.member is member]

    def _choose(self, new: NewRequest, prefills: Sequence[Member]) -> tuple[Member, int]:
        """The prefill replica for a prompt, and how many of its tokens that has."""
        views = [
            ReplicaView(
                each.index,
                each.replica.engine.num_cached_tokens(new),
                each.num_sequences,
                each.load,
            )
            for each in prefills
        ]
        index = choose_replica(views)
        pairs = zip(prefills, views, strict=True)
        return next((m, view.num_cached_tokens) for m, view in pairs if view.index == index)

    def _send(
        self, request: FrontRequest, handover: Handover, member: Member, num_new: int
    ) -> bool:
        new, length = request.new, handover.stop * self._block_size
        prompt = Prompt(
            new.prompt.token_ids[:length],
            cache_salt=new.prompt.cache_salt,
            packed=new.prompt.packed[: length * ID_BYTES],
            adapter=new.prompt.adapter,
        )
        job = Job(request, handover, member, request_load(1, num_new, self._token_budget))
        done, wake = self._done, self._wake

        def note(output: RequestOutput) -> None:
            if output.finished:
                done.append((job, output))
                wake()

        wanted = NewRequest(
            prompt=prompt,
            params=_JOB_PARAMS,
            key=new.key,
            kind="final",
            prefill_only=True,
            priority=new.priority,
            sink=note,
        )
        engine = member.replica.engine
        try:
            group = engine.prepare(wanted, seed=0)
        except (
            ValueError
        ):  # a request of the same key was aborted, and its prompt has not ended yet
            self.handovers.end(new.key)
            self.handovers.note_recomputed()
            return False
        self._jobs[new.key] = job
        member.num_requests += 1
        member.num_sequences += 1
        member.load += job.load
        member.replica.post(lambda: engine.enqueue(group))
        return True

    def _finish(self, job: Job, output: RequestOutput) -> None:
        self._release(job)
        counts, reason = self.handovers.counts, output.outputs[0].finish_reason
        counts.ended_jobs[str(reason)] = counts.ended_jobs.get(str(reason), 0) + 1
        if reason not in ("abort", "error"):
            counts.job_tokens += len(output.prompt_token_ids)
            counts.cached_job_tokens += output.num_cached_tokens
        self.handovers.computed(job.handover, output.num_cached_tokens)

    def _take_done(self) -> None:
        while self._done:
            self._finish(*self._done.popleft())

    def _release(self, job: Job) -> None:
        if (member := job.member) is not None:
            job.member = None
            member.num_requests -= 1
            member.num_sequences -= 1
            member.load -= job.load


def _may_be_apart(new: NewRequest) -> bool:
    """Whether a request needs its prompt for nothing but what follows it."""
    needs_prompt = new.params.has_given_scores or new.capture is not None or new.intervene
    return not (new.prefill_only or needs_prompt)
