"""Draws the charts of the README and docs/: opens pages of `fourtap report` in Chromium and keeps a chart of each.

cargo build --release -p fourtap-lab && python crates/fourtap-lab/scripts/draw_docs_charts.py
"""

import argparse
import html
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
MARGIN = 24
WIDTH = 960

# A run, the title of a chart in its page, and the files: for light pages, for dark ones, or on paper of its own.
CHARTS = [
    (
        "2026-11-17-h200-peers",
        "detr-encoder, local points, f16 on NVIDIA H200",
        {"peers-light": "light", "peers-dark": "dark"},
    ),
    ("2026-11-15-h200-lab", "Forward: arithmetic intensity and performance", {"roofline": "paper"}),
    ("2026-11-15-h200-ladder", "seed-full, local: every rung by time", {"ladder": "paper"}),
]


def chromium():
    names = [os.environ.get("FOURTAP_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    return next(found for name in names if name and (found := shutil.which(name)))


def drawn_page(program, run, folder):
    """The page of a run with its charts in it, as a browser of a desk's width has it."""
    page = pathlib.Path(folder) / f"{run}.html"
    subprocess.run([program, "report", "--force", ROOT / "runs" / run, "-o", page], check=True, capture_output=True)
    # Beside its text the page has two rem on each side.
    size = f"--window-size={WIDTH + 64},1000"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size, "--virtual-time-budget=5000"]
    command = [chromium(), *options, "--dump-dom", page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def alone(page, title, look):
    """The chart of this title as a file of its own."""
    title = html.escape(title)
    start = rf'<svg [^>]*aria-label="{re.escape(title)}"[^>]*viewBox="0 0 (\d+) (\d+)">'
    svg = re.search(rf"{start}(.*?)</svg>", page, re.DOTALL)
    width, height, body = int(svg[1]), int(svg[2]), svg[3]
    # What only a page uses: words that a pointer brings up.
    body = re.sub(r' (role|aria-label|data-words|tabindex)="[^"]*"', "", body)
    body = re.sub(r'<(rect|circle) class="touch"[^>]*></\1>', "", body)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    colours = dict(re.findall(r"(--\w+): (#\w+)", themes[look == "dark"]))
    rules = "\n".join(line for line in style.splitlines() if line.startswith(".chart "))
    # Programs that draw SVG need not know variables.
    rules = re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], rules)
    paper = f'<rect width="100%" height="100%" fill="{colours["--paper"]}"/>\n' if look == "paper" else ""
    whole = f"{width + 2 * MARGIN} {height + 3 * MARGIN}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {whole}" role="img">\n'
        f"<title>{title}</title>\n<style>\n{rules}\n</style>\n{paper}"
        f'<text x="{MARGIN}" y="32" style="font-size: 17px; font-weight: 700">{title}</text>\n'
        f'<g transform="translate({MARGIN} {2 * MARGIN})">\n{body.replace("<g ", chr(10) + "<g ")}</g>\n</svg>\n'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "target/release/fourtap", help="the fourtap to draw with")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs", metavar="FOLDER")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for run, title, files in CHARTS:
            page = drawn_page(arguments.program, run, folder)
            for name, look in files.items():
                (arguments.output / f"{name}.svg").write_text(alone(page, title, look))


if __name__ == "__main__":
    main()
