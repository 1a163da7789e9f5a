"""What `/metrics` tells however many models there are."""

import asyncio
import re

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

import dualstream
from dualstream.service.metrics import scrape, source_series
from dualstream.service.metrics.model_filter import Folded, ModelFilter
from dualstream.solvers import Progressive, numeric_identity
from tests.service.conftest import SPEC
from tests.service.support import scraped

GOOD = {"x": [1, 0, 0, 0, 2], "y": 1}
BAD = {"x": [1, 2], "y": 1}


def models_in(got: dict[str, float], family: str) -> set[str]:
    result = (re.search(r'model="([^"]*)"', name) for name in got if name.startswith(family))
    return {match.group(1) for match in result if match}


def test_series_are_of_the_first_models_and_the_others_are_summed(serve):
    client = serve(metrics_max_models=3)
    for number in (4, 2, 0, 3, 1):
        client.put(f"/models/m{number}", json=SPEC)
        client.post(f"/models/m{number}/learn", json={"samples": [GOOD] * (number + 1) + [BAD]})
        client.post(f"/models/m{number}/predict", json={"x": [GOOD["x"]] * (number + 1)})
    got = scraped(client)
    named = {"m0", "m1", "m2"}
    assert models_in(got, "dualstream_") == named | {"_other"}
    assert models_in(got, "dualstream_samples_total") == named
    for number in range(3):
        assert got[f'dualstream_predictions_total{{model="m{number}"}}'] == number + 1
    assert got['dualstream_predictions_total{model="_other"}'] == 4 + 5
    assert got['dualstream_refused_rows_total{model="_other"}'] == 2
    assert got['dualstream_models{state="stored"}'] == 5
    assert got['dualstream_models{state="shown"}'] == 3
    # One that comes among the first takes a place.
    client.put("/models/a", json=SPEC)
    assert models_in(scraped(client), "dualstream_samples_total") == {"a", "m0", "m1"}


def test_counted_models_are_bounded_while_they_come_and_go(serve):
    client = serve(metrics_max_models=1)
    telemetry = client.app._registry.counters
    for number in range(50):
        telemetry.saw_refused(f"m{number}", 1)
    assert len(telemetry._of_model) <= 4 * 8
    assert scraped(client)['dualstream_refused_rows_total{model="_other"}'] == 50


def test_a_second_server_on_the_store_shows_its_models_without_being_asked_for_them(serve, store):
    one = serve(store=store)
    other = serve(store=store)
    one.put("/models/m", json=SPEC)
    one.post("/models/m/learn", json={"samples": [GOOD] * 5})
    learned = 'dualstream_samples_total{model="m",outcome="learned"}'
    assert scraped(other)[learned] == scraped(one)[learned] == 5
    full = serve(store=store, models_bytes=1)
    full.put("/models/n", json=SPEC)
    # There is no room for both: the one in use stays.
    assert models_in(scraped(full), "dualstream_samples_total") == {"n"}


def test_sources_are_counted_by_the_store(serve, store, monkeypatch):
    workers = [serve(store=store), serve(store=store)]
    for model in "ab":
        workers[0].put(f"/models/{model}", json=SPEC)
        workers[1].get(f"/models/{model}")
        for number, client in enumerate(workers):
            header = f"t/{model}; from={number}; to={number}; lag={7 - number}; first"
            rows = {"samples": [{"x": {"1": 1}, "y": 1}, {"x": {"1": 1}, "y": 1}, {"x": "bad"}]}
            headers = {"dualstream-source": header}
            client.post(f"/models/{model}/learn", json=rows, headers=headers)
    for client in workers:
        text = client.get("/metrics").text
        for model in "ab":
            for outcome, rows in {"accepted": 4.0, "refused": 2.0}.items():
                labels = f'model="{model}",outcome="{outcome}",source="t/{model}"'
                assert f"dualstream_source_rows_total{{{labels}}} {rows}" in text
            labels = f'model="{model}",source="t/{model}"'
            assert f"dualstream_source_lag_rows{{{labels}}} 6.0" in text
        assert "dualstream_sources_left_out 0.0" in text
    monkeypatch.setattr(source_series, "SOURCES_IN_ALL", 1)
    workers[0].delete("/models/a/sources/t%2Fa")
    text = workers[1].get("/metrics").text
    assert 'source="t/a"' not in text and 'source="t/b"' in text
    workers[0].put("/models/a/sources/s", json={"next": 1})
    text = workers[1].get("/metrics").text
    assert 'source="s"' in text and 'source="t/b"' not in text
    assert "dualstream_source_lag_rows{" not in text and "dualstream_sources_left_out 1.0" in text


def test_a_summary_is_computed_once_for_a_model_and_scrape(model, monkeypatch):
    model.post("/models/m/learn", json=GOOD)
    calls = []
    summary = Progressive.summary
    monkeypatch.setattr(Progressive, "summary", lambda of: calls.append(1) or summary(of))
    assert model.get("/metrics").status_code == 200
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["dualstream_predictions", "dualstream_request_duration_seconds"])
def test_no_series_tells_when_it_was_created(model, name):
    model.get("/models/m/predict?x=1:1")
    got = scraped(model)
    assert any(series.startswith(name) for series in got)
    assert not any("_created" in series for series in got)


def test_others_have_their_turns_while_a_long_exposition_is_written(monkeypatch):
    monkeypatch.setattr(scrape, "SLICE_S", 0.0)
    registry = CollectorRegistry()
    Gauge("without_any", "It has no series.", ["a"], registry=registry)
    counter = Counter("many", 'Of 1,000 "models", \\ and\nlines.', ["a"], registry=registry)
    for number in range(1000):
        counter.labels(f'm"{number}').inc(number / 3)
    Histogram("spread", "In buckets.", registry=registry).observe(0.3)
    families = Folded(registry, ModelFilter(0))

    async def written() -> tuple[bytes, int]:
        writing = asyncio.create_task(scrape.text_of(families.collect(), scrape.EventLoopSlices()))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        return writing.result(), turns

    whole, turns = asyncio.run(written())
    assert whole == generate_latest(families)
    assert turns >= 1000 / scrape.SAMPLES


def test_a_client_cannot_make_series_by_inventing_methods(model):
    model.post("/models/m/learn", json=GOOD)
    model.request("PROPFIND", "/models/m/learn")
    telemetry = model.app._registry.counters
    for number in range(50):
        telemetry.saw_request(f"M{number}", "learn", 405, 0.1)
    got = scraped(model)
    requests = "dualstream_request_duration_seconds_count"
    assert got[f'{requests}{{method="POST",route="learn",status="200"}}'] == 1
    assert got[f'{requests}{{method="other",route="learn",status="405"}}'] == 51


def test_a_label_delay_is_never_negative(client):
    telemetry = client.app._registry.counters
    for delay_s in (2.0, -86_400.0, -0.001, 0.5):
        telemetry.saw_label("m", delay_s)
    assert telemetry.label_delays("m") == (4, 2.5)
    assert "dualstream_label_delay_seconds_sum 2.5" in client.get("/metrics").text


def test_build_and_process_are_shown(serve):
    text = serve().get("/metrics").text
    build = re.search(r"^dualstream_build_info{(.+)} 1.0$", text, re.MULTILINE)
    assert f'version="{dualstream.__version__}"' in build[1]
    assert f'identity="{numeric_identity()}"' in build[1]
    resident = re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)
    assert float(resident[1]) > 1e7
