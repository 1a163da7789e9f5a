"""The scores of rows as answers have them."""

from typing import TYPE_CHECKING

from msgspec import UNSET

from service.api.learned import by_place, first_errors, spread
from service.codecs import Intake
from service.model import Model
from service.schemas import Predicted, PredictedMany
from solvers import Batch, Learner, class_label

if TYPE_CHECKING:
    from solvers.multiclass import Multiclass


def scored(
    model: Model, learner: Learner, intake: Intake, batch: Batch, seq: int
) -> Predicted | PredictedMany:
    """What the learner, a state of this model, says of the rows: of one, or of many."""
    answer_of = _of_classes if model.door.task == "multiclass" else _of_scores
    return answer_of(model, learner, intake, batch, seq)


def _of_scores(
    model: Model, learner: Learner, intake: Intake, batch: Batch, seq: int
) -> Predicted | PredictedMany:
    door = model.door
    scores = learner.predict(batch)
    found = learner.probabilities(scores)
    if intake.single:
        score = float(scores[0])
        probability = None if found is None else float(found[0])
        return Predicted(model.record.id, seq, score, door.class_name(score), probability)
    told = by_place(intake, scores.tolist())
    return PredictedMany(
        model=model.record.id,
        seq=seq,
        scores=told,
        labels=[None if score is None else door.class_name(score) for score in told],
        probabilities=None if found is None else by_place(intake, found.tolist()),
        rejected=len(intake.errors) if intake.errors else UNSET,
        errors=first_errors(intake.errors),
    )


def _of_classes(
    model: Model, learner: Learner, intake: Intake, batch: Batch, seq: int
) -> Predicted | PredictedMany:
    """The best class of each row: its score, its name, its probability."""
    of_classes: Multiclass = learner  # type: ignore[assignment]
    found = of_classes.predict_classes(batch)
    best = found.best.tolist()
    scores = [float(found.scores[k, b]) if b >= 0 else 0.0 for k, b in enumerate(best)]
    labels = [class_label(found.classes[b]) if b >= 0 else None for b in best]
    chances: list[float | None] | None = None
    if found.probabilities is not None:
        of = found.probabilities
        chances = [float(of[k, b]) if b >= 0 else None for k, b in enumerate(best)]
    if intake.single:
        chance = None if chances is None else chances[0]
        return Predicted(model.record.id, seq, scores[0], labels[0], chance)
    return PredictedMany(
        model=model.record.id,
        seq=seq,
        scores=by_place(intake, scores),
        labels=spread(intake, labels),
        probabilities=None if chances is None else spread(intake, chances),
        rejected=len(intake.errors) if intake.errors else UNSET,
        errors=first_errors(intake.errors),
    )
