"""The device is told each sequence once, and of ended answers the latest."""

import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.programs.kinds.speculative_decode import TOKENS_A_WRITE
from jaxinfer.serving.programs.speculative.drafter import CORPUS
from jaxinfer.serving.requests.request import RequestStatus
from jaxinfer.serving.runner.draft_texts import DraftTexts
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from tests.serving.requests.host_request import host_request


class Device:
    """Takes writes as `write_texts` does."""

    def __init__(self, texts, corpus=0):
        self.texts = texts
        self.history = np.full((3, 5000), -9, np.int32)
        self.lengths = np.zeros(3, np.int32)
        self.corpus = np.full(corpus, -9, np.int32)
        self.num_written = 0

    def take(self, *rows):
        schedule = Schedule(list(rows), is_decode=True, num_drafts=3, unknown=range(len(rows)))
        for where, tokens in self.texts.writes(schedule):
            slot, start, count, length = where.tolist()
            assert len(tokens) == TOKENS_A_WRITE
            into = self.corpus if slot == CORPUS else self.history[slot]
            into[start : start + count] = tokens[:count]
            if slot != CORPUS:
                self.lengths[slot] = length
            self.num_written += count


def running(slot, prompt, outputs=()):
    request = host_request(f"r{slot}", prompt, SamplingParams(max_tokens=9000))
    request.slot, request.status = slot, RequestStatus.RUNNING
    request.output_token_ids = list(outputs)
    return request


def row_of(request, in_flight=0):
    return ScheduledRow(request, request.num_known_tokens + in_flight - 1, 1, 4)


@pytest.mark.parametrize("length", [3, TOKENS_A_WRITE, 2 * TOKENS_A_WRITE + 1])
def test_a_sequence_is_written_whole_and_then_what_it_gained(length):
    device, prompt = Device(DraftTexts()), list(range(length))
    request = running(1, prompt, [7, 8])
    device.take(row_of(request))
    known = [*prompt, 7, 8]
    assert device.history[1, : length + 2].tolist() == known
    assert device.lengths[1] == length + 2
    request.output_token_ids += [5, 6, 4]
    device.take(row_of(request))
    assert device.history[1, : length + 5].tolist() == [*known, 5, 6, 4]
    assert device.lengths[1] == length + 5
    assert device.num_written == length + 5


def test_a_newest_token_that_is_not_read_counts_and_is_left_to_the_step():
    device, request = Device(DraftTexts()), running(0, [4, 5])
    device.take(row_of(request, in_flight=1))
    assert device.history[0, :3].tolist() == [4, 5, -9]
    assert device.lengths[0] == 3


def test_a_sequence_that_comes_back_or_another_one_is_written_anew():
    device, request = Device(DraftTexts()), running(0, [4, 5, 6])
    device.take(row_of(request))
    request.blocks.num_admissions += 1
    device.history[:] = -9
    device.take(row_of(request))
    assert device.history[0, :3].tolist() == [4, 5, 6]
    device.take(row_of(running(0, [1, 2])))
    assert device.history[0, :2].tolist() == [1, 2]
    assert device.lengths[0] == 2


def test_ended_answers_fill_the_corpus_in_a_circle():
    device = Device(DraftTexts(8, [[1, 2]]), corpus=8)
    device.take(row_of(running(0, [4])))
    assert device.corpus[:3].tolist() == [1, 2, -1]
    for answer in ([3, 4, 5], [6, 7]):
        ended = running(1, [9], answer)
        device.take(row_of(ended))
        ended.status = RequestStatus.FINISHED
        device.take()
    assert device.corpus.tolist() == [7, -1, -1, 3, 4, 5, -1, 6]
    ended = running(1, [9], range(20))
    device.take(row_of(ended))
    ended.status = RequestStatus.FINISHED
    device.take()
    assert sorted(device.corpus.tolist()) == [-1, *range(13, 20)]


def test_of_too_many_texts_the_last_are_written():
    device = Device(DraftTexts(8, [range(50), range(20), [1, 2, 3]]), corpus=8)
    device.take()
    assert device.corpus.tolist() == [17, 18, 19, -1, 1, 2, 3, -1]
    assert device.num_written == 8


def test_after_the_arrays_were_made_anew_all_is_written_again():
    texts = DraftTexts(8, [[1, 2]])
    device, request = Device(texts, corpus=8), running(0, [4, 5])
    device.take(row_of(request))
    texts.clear()
    fresh = Device(texts, corpus=8)
    fresh.take(row_of(request))
    assert fresh.history[0, :2].tolist() == [4, 5]
    assert fresh.corpus[:3].tolist() == [1, 2, -1]
