"""Transformers: its Trainer, an AdaptiveLoader's batches; the same numbers as an ordinary loop's."""

import copy
import importlib.util

import pytest
import torch
import torch.nn.functional as F

from tests.integrations.problem import assert_same, in_ranks

INSTALLED = all(importlib.util.find_spec(name) for name in ("transformers", "accelerate"))
pytestmark = pytest.mark.skipif(not INSTALLED, reason="transformers and accelerate are not installed")


@pytest.fixture(scope="module")
def runs():
    from tests.integrations import transformers_runs  # not at the top: the import takes seconds

    return transformers_runs


def test_it_trains_and_resumes_as_adamcb_does(runs, tmp_path):
    expected = runs.own_loop()
    for result in runs.straight_and_resumed(str(tmp_path)):
        assert_same(result, expected)


@pytest.mark.slow
def test_two_processes_train_and_resume_as_one(runs, tmp_path):
    expected = runs.own_loop()
    for results in in_ranks(2, runs.straight_and_resumed, str(tmp_path)):
        for result in results:
            assert_same(result, expected)


def test_it_resumes_with_the_same_dropout(runs, tmp_path):
    straight, resumed = runs.straight_and_resumed(str(tmp_path), dropout=0.2)
    assert_same(resumed, straight)


def models(runs):
    """Pairs of a model and labels for a batch of four texts."""
    import transformers as hf

    tokens = torch.stack([sample["labels"] for sample in runs.texts()[:4]])
    classes, scores = torch.tensor([0, 2, 1, 1]), torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    config = runs.bert_config
    yield runs.gpt(), tokens
    yield hf.BertForMaskedLM(config()), tokens
    yield hf.BertForTokenClassification(config(num_labels=256)), tokens
    yield hf.BertForSequenceClassification(config(num_labels=3)), classes
    yield hf.BertForSequenceClassification(config(num_labels=3)), scores
    yield hf.BertForSequenceClassification(config(num_labels=1)), scores[:, 0]
    yield hf.BertForSequenceClassification(config(num_labels=3, problem_type="regression")), scores


def test_losses_of_samples_sum_up_to_the_loss_of_the_model(runs):
    from adamcb.integrations._text_losses import count_items, sample_losses
    from adamcb.integrations.transformers import _loss_kind

    inputs = torch.stack([sample["input_ids"] for sample in runs.texts()[:4]])
    for model, labels in models(runs):
        config, kind = copy.deepcopy(model.config), _loss_kind(model)  # the forward pass would complete it
        outputs = model.eval()(input_ids=inputs, labels=labels)
        losses, items = sample_losses(kind, config, outputs.logits, labels), count_items(kind, labels)
        torch.testing.assert_close(losses.sum() / items.sum(), outputs.loss.to(losses.dtype))


def test_labels_are_smoothed_as_by_transformers(runs):
    from transformers.trainer_pt_utils import LabelSmoother

    from adamcb.integrations._text_losses import count_items, sample_losses

    model, labels = next(models(runs))
    outputs = model(input_ids=labels.clamp(min=0))
    losses = sample_losses("ForCausalLM", model.config, outputs.logits, labels, label_smoothing=0.1)
    expected = LabelSmoother(0.1)({"logits": outputs.logits}, labels, shift_labels=True)
    torch.testing.assert_close(losses.sum() / count_items("ForCausalLM", labels).sum(), expected)


def test_a_loss_of_ones_own_is_weighed_and_evaluated(runs, tmp_path):
    from adamcb.integrations.transformers import AdamCBTrainer

    def loss_of(outputs, labels, num_items_in_batch=None):
        sizes.append(len(labels))
        return F.cross_entropy(outputs.logits[:, 0], labels[:, 0], reduction="none")

    sizes: list[int] = []
    args = runs.arguments(str(tmp_path), max_steps=3, per_device_eval_batch_size=52)
    sets = {"train_dataset": runs.texts(), "eval_dataset": runs.texts()}
    trainer = AdamCBTrainer(model=runs.gpt(), args=args, compute_loss_func=loss_of, **sets)
    trainer.train()
    before = len(sizes)
    assert sizes == [8, 8, 8]
    assert trainer.evaluate()["eval_loss"] > 0.0
    assert sizes[before:] == [52, 52]


def test_the_model_is_left_as_it_was_and_evaluates_as_ever(runs, tmp_path):
    from transformers import Trainer

    from adamcb.integrations.transformers import AdamCBTrainer

    args, model = runs.arguments(str(tmp_path), max_steps=2), runs.gpt()
    trainer = AdamCBTrainer(model=model, args=args, train_dataset=runs.texts(), eval_dataset=runs.texts())
    trainer.train()
    assert not model._forward_hooks
    plain = Trainer(model=model, args=args, eval_dataset=runs.texts())
    plain.model_accepts_loss_kwargs = False
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"torch_compile": True}, ValueError, "`torch_compile` must be False"),
        ({"train_sampling_strategy": "group_by_length"}, ValueError, "`train_sampling_strategy` must be 'random'"),
        ({"samples": [{"input_ids": torch.zeros(4).long()}] * 104}, ValueError, "A batch must have `labels`"),
        ({"choosing": {"scores": "all"}}, ValueError, "`scores` must be one of"),
    ],
)
def test_what_would_break_it_is_refused(runs, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        runs.fit(str(tmp_path), runs.gpt(), **options)


def test_sharded_weights_are_for_one_process(runs, tmp_path, monkeypatch):
    from transformers import TrainingArguments

    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    with pytest.raises(ValueError, match=r"Transformers saves one state, .* `dcp.save\("):
        runs.fit(str(tmp_path), runs.gpt(), choosing={"sharded": True})


def test_an_unknown_loss_is_refused(runs, tmp_path):
    from transformers import BertForQuestionAnswering

    with pytest.raises(NotImplementedError, match=r"BertForQuestionAnswering .* pass `compute_loss_func=f`"):
        runs.fit(str(tmp_path), BertForQuestionAnswering(runs.bert_config()))


def test_a_checkpoint_without_our_state_is_refused(runs, tmp_path):
    runs.fit(str(tmp_path), runs.gpt(), save_strategy="steps", save_steps=3, max_steps=3)
    (tmp_path / "checkpoint-3" / "adamcb.pt").unlink()
    with pytest.raises(FileNotFoundError, match="There is no checkpoint at .*adamcb.pt"):
        runs.fit(str(tmp_path), runs.gpt(), resume=f"{tmp_path}/checkpoint-3")
