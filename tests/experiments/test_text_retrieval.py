"""The experiment with texts trains both similarities on the same batches and keeps test articles out of the choice."""

import torch
from running import run_experiment

from examples import text_retrieval as example
from experiments import text_retrieval


def test_both_similarities_learn_and_the_table_is_written(tmp_path):
    (tmp_path / "page.md").write_text("<!-- text-retrieval: begin -->\n<!-- text-retrieval: end -->\n")
    run_experiment("text_retrieval", "--page", "page.md", folder=tmp_path)
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    titles, sizes = zip(*(row[:2] for row in rows[2:]), strict=True)
    assert titles == ("cosine, one component", "mixture of logits")
    first, second = (int(size.replace(",", "")) for size in sizes)
    assert max(first, second) < 1.01 * min(first, second)
    for row in rows[2:]:
        # Guessing finds 10 of 150 paragraphs.
        assert 0.1 < float(row[3]) <= float(row[4]) <= 1
    assert "figures/text-retrieval.svg" in page


def test_the_rest_of_a_sentence_is_found_among_those_of_its_part_only():
    pairs = [example.made_up(seed, 110) for seed in range(3)]
    numbers = example.vocabulary(pairs[0])
    parts = [example.numbered(part, numbers) for part in pairs]
    torch.manual_seed(0)
    trainer = text_retrieval.TextTrainer(parts, len(numbers) + 2, "cosine", 0)
    trainer.model.eval()
    with torch.no_grad():
        for measured, (sentences, rests) in ((trainer.validate(), parts[1]), (trainer.test(), parts[2])):
            scores = trainer.model.encoder(sentences)[:, 0] @ trainer.model.encoder(rests)[:, 0].T
            ranks = (scores > scores.diagonal()[:, None]).sum(dim=1)
            for k in example.KS:
                # Float32 may order two paragraphs of almost equal scores otherwise.
                assert abs(measured[f"recall@{k}"] - float((ranks < k).double().mean())) <= 1.5 / len(ranks)


def test_a_word_that_training_has_once_or_never_is_unknown():
    numbers = example.vocabulary([(["a", "b", "."], ["a", "."])])
    assert sorted(numbers) == [".", "a"]
    assert sorted(numbers.values()) == [2, 3]
    sentences, rests = example.numbered([(["a", "new"], ["."])], numbers)
    assert sentences[0, :3].tolist() == [numbers["a"], 1, 0]
    assert rests[0, :2].tolist() == [numbers["."], 0]
