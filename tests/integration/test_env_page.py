"""The page on which a visitor plays: what is served, and an episode in a real browser."""

import json
import re

import httpx
import pytest
from helpers import browser

from env.server.page import FILES, FOLDER


def test_the_page_is_served_and_loads_nothing_from_elsewhere_nor_reads_markup(server_url):
    for path, (name, kind) in FILES.items():
        answer = httpx.get(server_url + path)
        assert answer.headers["content-type"].startswith(kind)
        assert answer.content == (FOLDER / name).read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", answer.text)
        markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\("
        assert not re.search(markup, answer.text)


@pytest.mark.skipif(browser.BINARY is None, reason="needs Chromium")
def test_a_visitor_plays_an_episode_with_children(server_url, server_params, server_problems):
    problem = server_problems.pick("train", "medium", 1)
    gold = [span.text for fact in problem.evidence for span in fact.spans]
    method = re.findall(r"[A-Z][a-z]+", problem.question)[-1]
    with browser.page(server_url) as shown:

        def turn(code: str) -> None:
            text = json.dumps(f"```repl\n{code}\n```")
            shown.run(f"document.getElementById('turn').value = {text}")
            shown.run("document.getElementById('composer').requestSubmit()")
            shown.until("!document.getElementById('send').disabled")

        shown.until("document.querySelectorAll('#difficulty option').length > 1")
        shown.run("document.getElementById('difficulty').value = 'medium'")
        shown.run("document.getElementById('seed').value = 1")
        shown.run("document.getElementById('start').requestSubmit()")
        shown.until("!document.getElementById('composer').hidden")
        assert problem.question in shown.run("document.getElementById('messages').textContent")
        told = shown.run("document.getElementById('status').textContent")
        assert told == f"Turn 1 of {server_params.env.limits.max_turns}. Ctrl+Enter sends."
        assert not any(text in shown.run("document.body.textContent") for text in gold)
        turn(
            f'ids = list(search(context, "{method}"))\n'
            "answers = rlm_query_batched(['?'] * len(ids), [context[i] for i in ids])\n"
            "FINAL([text for answer in answers for text in answer])"
        )
        children = shown.run("document.querySelectorAll('#tree ul button').length")
        assert children >= 1
        for _ in range(children):
            turn(f"FINAL([text for text in {gold!r} if text in context])")
        shown.until("!document.getElementById('result').hidden")
        assert float(shown.run("document.getElementById('reward').textContent")) > 0.5
        assert shown.run("document.querySelectorAll('#components meter').length") == 4
        assert shown.run("document.getElementById('problem').hidden")
