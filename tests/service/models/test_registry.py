"""What a process holds of a store that others change while it loads."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dualstream.service.jobs.follower import Follower
from dualstream.service.journal.protocol import AppendRequest, Base, ModelChanged
from dualstream.service.models import creation, registry as registry_module
from dualstream.service.models.registry import KeptLineage, ModelRegistry
from dualstream.service.models.versions import LoadedVersions, take_version
from dualstream.service.replica.fork_detection import Lineage
from dualstream.service.replica.recovery import recover
from dualstream.wire.problem_json import Problem
from tests.service.conftest import SPEC
from tests.service.journal.groups import rows
from tests.service.models.support import serving

OTHER = SPEC | {"rho": 0.5}


class Held:
    """Loads that have read all there is, and wait to be let go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_there, self.may_end = asyncio.Event(), asyncio.Event()

        async def slowly(*args: Any) -> None:
            await recover(*args)
            if not self.is_there.is_set():
                self.is_there.set()
                await self.may_end.wait()

        monkeypatch.setattr(registry_module, "recover", slowly)


@pytest.mark.parametrize("change", ["deleted", "deleted and made", "replaced"])
def test_overtaken_load_is_not_cached(store, monkeypatch, change):
    async def scenario() -> None:
        async with serving(store) as other, serving(store) as registry:
            await creation.create(other, "m", SPEC)
            slow = Held(monkeypatch)
            loading = asyncio.create_task(registry.get("m"))
            await slow.is_there.wait()
            made = None
            if change == "replaced":
                made, _ = await asyncio.wait_for(replaced(registry), 30)
            else:
                await creation.delete(registry, "m")
                if change == "deleted and made":
                    made, _ = await asyncio.wait_for(creation.create(registry, "m", OTHER), 30)
            slow.may_end.set()
            if made is None:
                with pytest.raises(Problem, match="no model"):
                    await loading
                assert registry.find("m") is None
            else:
                assert await loading is registry.find("m") is made
                assert made.replica.spec["rho"] == 0.5
                assert (await registry.journal.get("m")).incarnation == made.record.incarnation

    async def replaced(registry: ModelRegistry) -> Any:
        may: Callable[[Any], bool] = lambda record: True  # noqa: E731
        return await creation.create(registry, "m", OTHER, may)

    asyncio.run(scenario())


def test_a_model_asked_for_before_its_making_is_answered_is_one_and_the_same(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store) as registry:
            create, slow = registry.journal.create, Held(monkeypatch)
            asking: list[asyncio.Task[Any]] = []

            async def create_and_be_asked(*args: Any) -> Any:
                made = await create(*args)
                asking.append(asyncio.create_task(registry.get("m")))
                await slow.is_there.wait()
                asyncio.get_running_loop().call_later(0.01, slow.may_end.set)
                return made

            monkeypatch.setattr(registry.journal, "create", create_and_be_asked)
            made, _ = await creation.create(registry, "m", SPEC)
            assert await asking[0] is made is registry.find("m")

    asyncio.run(scenario())


def test_nothing_is_kept_of_models_that_are_gone(store):
    async def scenario() -> None:
        async with serving(store) as other, serving(store) as registry:
            await creation.create(other, "m", SPEC)
            await registry.get("m")
            registry.counters.saw_refused("m", 1)
            await creation.delete(other, "m")
            await Follower(registry, registry.journal)._check_heads()
            assert not registry.counters._of_model and not len(registry)
            registry._lineages["m"] = KeptLineage("an incarnation", Lineage(), True)
            with pytest.raises(Exception, match="no model"):
                await registry.get("m")
            assert not registry._lineages

    asyncio.run(scenario())


def test_model_made_again_while_the_heads_are_read_keeps_its_counts(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store) as other, serving(store) as registry:
            await creation.create(other, "m", SPEC)
            await registry.get("m")
            await creation.delete(other, "m")
            heads = registry.journal.heads

            async def late(models: Sequence[str]) -> Any:
                result = await heads(models)
                await creation.create(registry, "m", SPEC)
                registry.counters.saw_refused("m", 1)
                return result

            monkeypatch.setattr(registry.journal, "heads", late)
            await Follower(registry, registry.journal)._check_heads()
            assert registry.counters._of_model.keys() == {("refused_rows", "m")}

    asyncio.run(scenario())


def test_a_deletion_that_the_store_hears_of_late_takes_no_model_that_was_made_since(
    store, monkeypatch
):
    async def scenario() -> None:
        async with serving(store) as other, serving(store) as registry:
            await creation.create(other, "m", SPEC)
            delete = registry.journal.delete

            async def late(*args: Any) -> None:
                await creation.delete(other, "m")
                await creation.create(other, "m", OTHER)
                await delete(*args)

            monkeypatch.setattr(registry.journal, "delete", late)
            with pytest.raises(ModelChanged):
                await creation.delete(registry, "m")
            made = await registry.journal.get("m")
            assert made.incarnation == (await other.get("m")).record.incarnation
            monkeypatch.undo()
            await creation.delete(registry, "m")
            with pytest.raises(Problem, match="no model"):
                await creation.delete(registry, "m")
            if store.startswith("redis"):  # a deletion that died before its last step left this
                await registry.journal._others.call("ZADD", "ds:models", 0, "m")
                with pytest.raises(Problem, match="no model"):
                    await creation.delete(registry, "m")
                assert await registry.journal.count() == 0

    asyncio.run(scenario())


def test_model_recreated_during_a_load_is_loaded_again(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store) as other, serving(store) as registry:
            await creation.create(other, "m", SPEC)
            base, remade = registry.journal.base, [OTHER, SPEC]

            async def overtaken(model: str) -> Base:
                result = await base(model)
                if remade:
                    await creation.delete(other, "m")
                    await creation.create(other, "m", remade.pop())
                return Base(result.record)

            monkeypatch.setattr(registry.journal, "base", overtaken)
            model = await registry.get("m")
            assert not remade and model.record == await other.journal.get("m")

    asyncio.run(scenario())


@pytest.mark.parametrize("meanwhile", ["it learned", "it was made again"])
def test_a_model_that_moves_on_while_it_is_deleted_by_its_place_stays(
    store, monkeypatch, meanwhile
):
    async def scenario() -> None:
        async with serving(store) as registry:
            await creation.create(registry, "m", SPEC)
            delete = registry.journal.delete

            async def late(*args: Any) -> None:
                record = await registry.journal.get("m")
                if meanwhile == "it learned":
                    nonce = b"n" * 16
                    await registry.journal.append(
                        AppendRequest("m", record.incarnation, nonce, 0, [rows(1)])
                    )
                else:
                    await delete("m")
                    await registry.journal.create("m", record.spec, record.given)
                await delete(*args)

            monkeypatch.setattr(registry.journal, "delete", late)
            with pytest.raises(Problem, match="If-Match") as refused:
                await creation.delete(registry, "m", may_delete=lambda record: True)
            assert (refused.value.status, refused.value.slug) == (412, "precondition-failed")
            await registry.journal.get("m")

    asyncio.run(scenario())


@pytest.mark.parametrize("wherever", [True, False])
def test_a_model_that_learns_while_it_is_replaced(store, monkeypatch, wherever):
    """`If-Match: *` names it wherever it stands; an ETag, only there."""

    async def scenario() -> None:
        async with serving(store) as registry:
            await creation.create(registry, "m", SPEC)
            replace, learned = registry.journal.replace, []

            async def late(*args: Any) -> Any:
                if len(learned) < 3:
                    record = await registry.journal.get("m")
                    nonce = bytes([len(learned)]) * 16
                    position = ("m", record.incarnation, nonce, 0, [rows(len(learned) + 1)])
                    learned.append(await registry.journal.append(AppendRequest(*position)))
                return await replace(*args)

            monkeypatch.setattr(registry.journal, "replace", late)
            replacing = creation.create(
                registry, "m", OTHER, lambda record: wherever or record.seq == 0
            )
            if wherever:
                model, created = await replacing
                assert created and len(learned) == 3
                assert (model.replica.seq, model.replica.spec["rho"]) == (0, 0.5)
            else:
                with pytest.raises(Problem, match="has another ETag than If-Match names"):
                    await replacing
                assert (await registry.journal.get("m")).seq == 1

    asyncio.run(scenario())


def test_a_version_in_memory_does_not_wait_for_another_one(store):
    async def scenario() -> None:
        async with serving(store) as registry:
            model, _ = await creation.create(registry, "m", SPEC)
            await take_version(model, registry.journal, "v", "")
            versions = LoadedVersions(2, 10**9)
            first = await versions.get(model, registry.journal, "v")
            async with versions._loading:  # as if another one took long
                again = versions.get(model, registry.journal, "v")
                assert await asyncio.wait_for(again, 30) is first

    asyncio.run(scenario())


def test_the_store_is_not_asked_for_what_cannot_be_an_id(store, monkeypatch):
    async def scenario() -> None:
        async with serving(store) as registry:
            requests: list[str] = []
            for name in ("get", "base", "delete", "create"):
                monkeypatch.setattr(registry.journal, name, lambda *args: requests.append(args[0]))
            for model_id in ("a;b", "", "-m", "m\0", "m/versions", "a" * 129, "\u00e1"):
                for ask in (registry.get(model_id), creation.delete(registry, model_id)):
                    with pytest.raises(Problem, match="a model id has 1 to 128 characters"):
                        await ask
                with pytest.raises(Problem, match="a model id has 1 to 128 characters"):
                    await creation.create(registry, model_id, SPEC)
            assert not requests

    asyncio.run(scenario())
