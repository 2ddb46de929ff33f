"""The playground in a real browser: where Chromium is installed (`make test-browser` installs it)."""

import os
import shutil
from importlib import resources

import pytest
from servers import items, running

import softindex
from softindex.service.demo import demo_index

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium; run make test-browser")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
SIZES = {"desk": {"width": 1200, "height": 900}, "phone": {"width": 390, "height": 844}}
PICTURES = os.environ.get("SOFTINDEX_PICTURES")
"""Directory for screenshots to look at; none are kept by default."""
DONE = "#message:has-text('of the mass')"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "demo"
    demo_index().save(path)
    with running(path) as server:
        yield server


@pytest.fixture
def page(browser, site):
    with opened(browser, site) as found:
        yield found


class opened:  # noqa: N801
    """A page of the site; whatever it fetches from elsewhere, logs or throws fails the test."""

    def __init__(self, browser, site, size="desk", scheme="light", **options):
        self.context = browser.new_context(viewport=SIZES[size], color_scheme=scheme, **options)
        self.site, self.wrong = site, []

    def __enter__(self):
        page = self.context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        page.on(
            "request",
            lambda sent: self.wrong.append(sent.url) if not sent.url.startswith((self.site.url, "data:")) else None,
        )
        page.goto(self.site.url)
        return page

    def __exit__(self, kind, *_):
        self.context.close()
        if kind is None:
            assert self.wrong == []


def names(page):
    return page.locator("#best tbody th").all_text_contents()


def test_the_page_shows_the_law_and_the_draws(page, site):
    page.wait_for_selector(DONE)
    page.fill("#item", "red wool scarf")
    page.locator("#item").dispatch_event("change")
    page.wait_for_selector("#best tbody tr:first-child th:text-is('red wool scarf')")
    page.wait_for_selector(DONE)
    best = site.answer("top-k", {"item": "red wool scarf", "k": 15})
    assert names(page) == best["ids"]
    shown = page.locator("#best tbody .probability .value").all_text_contents()
    temperature = 10**-1.2
    law = site.answer(
        "log-prob", {"item": "red wool scarf", "ids": best["ids"], "temperature": temperature, "method": "exact"}
    )
    # The page rounds to a tenth of a percent.
    for text, value in zip(shown, law["log_prob"], strict=True):
        assert abs(float(text.removeprefix("< ").removesuffix(" %")) / 100 - 2.718281828459045**value) < 0.0011
    assert page.locator("#slates tbody tr").count() == 10
    assert page.locator("#slates thead th").count() == 6
    assert "of 32,240" in page.inner_text("#scored")


def test_everything_works_from_the_keyboard(page):
    page.wait_for_selector(DONE)
    cold = page.inner_text("#mass")
    page.focus("#item")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "temperature"
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"#mass:not(:text-is('{cold}'))")
    page.wait_for_selector(DONE)
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert order == ["method", "draws", "seed", "Draw again", "measure"]
    page.keyboard.press("Enter")
    page.wait_for_selector("#message:has-text('Measured total variation')")
    assert float(page.inner_text("#measured")) < 0.5
    page.focus("button[type=submit]")
    page.keyboard.press("Space")
    page.wait_for_selector(DONE)
    assert page.input_value("#seed") == "2"


def test_a_mistake_is_the_sentence_of_the_library_and_is_announced(browser, site):
    shown = opened(browser, site)
    with shown as page:
        page.wait_for_selector(DONE)
        page.fill("#item", "no such thing")
        page.locator("#item").dispatch_event("change")
        page.wait_for_selector("#message.wrong:has-text('is not in this index')")
        assert page.get_attribute("#message", "role") == "status"
        # The browser logs the 422, which is no error of the page.
        shown.wrong = [text for text in shown.wrong if "422" not in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", sorted(SIZES))
def test_no_serious_barrier_for_anybody(browser, site, size, scheme, tmp_path):
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    with opened(browser, site, size, scheme, bypass_csp=True) as page:
        page.wait_for_selector(DONE)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= SIZES[size]["width"], "the page scrolls sideways"
        now = page.locator("#slates th.now").bounding_box()
        assert now["x"] >= 0, "the slate at the present temperature is out of view"
        assert now["x"] + now["width"] <= SIZES[size]["width"], "the slate at the present temperature is out of view"
        if PICTURES:
            page.screenshot(path=os.path.join(PICTURES, f"{size}-{scheme}.png"), full_page=True)
        page.evaluate(axe)
        found = page.evaluate("axe.run()")
        serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
        assert not serious, [(one["id"], [node["html"] for node in one["nodes"]]) for one in serious]
        assert len(found["passes"]) > 20


def test_a_server_with_keys_asks_for_one(browser, tmp_path):
    (tmp_path / "keys").write_text("read " + "k" * 20)
    softindex.build(items(200), threads=1).save(tmp_path / "index")
    with running(tmp_path / "index", keys_file=str(tmp_path / "keys")) as server:
        shown = opened(browser, server)
        with shown as page:
            page.wait_for_selector("#key")
            page.fill("#key", "k" * 20)
            page.press("#key", "Tab")
            page.wait_for_selector(DONE)
            assert len(names(page)) == 15
            # The browser logs the 401 that came first.
            shown.wrong = [text for text in shown.wrong if "401" not in text]
