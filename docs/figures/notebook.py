"""Execute the notebook of the tutorials in a project, and write its page: `python -m docs.figures.notebook PROJECT`.

PROJECT is the folder of docs/tutorials/first-experiment.md. Without it, the program writes only the page and its
pictures, from the outputs that the notebook contains.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
NAME = "results-in-a-notebook"
NOTEBOOK = DOCS / f"tutorials/{NAME}.ipynb"
HEAD = "<!-- Written by docs/figures/notebook.py from the notebook: change that, then run the program. -->"
_SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)


def execute(notebook: Path, project: Path) -> Any:
    """Return a notebook with the outputs of its cells, executed in a project's folder.

    Raises:
        CellExecutionError: A cell raised an error.
    """
    import nbformat
    from nbclient import NotebookClient

    found = nbformat.read(notebook, as_version=4)
    resources = {"metadata": {"path": str(project)}}
    NotebookClient(found, timeout=600, kernel_name="python3", resources=resources).execute()
    for cell in found.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":  # warnings name files of this machine
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    found.metadata = {"kernelspec": found.metadata["kernelspec"]}
    return found


def page_of(notebook: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the page of a notebook with outputs, and the text of its pictures by file name."""
    parts, images = [], dict[str, str]()

    def image(svg: str) -> str:
        name = f"notebook-{len(images) + 1}.svg"
        images[name] = svg + "\n"
        return f'<img alt="Output of the cell above" src="../images/{name}">'

    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(_screen("".join(output["text"])))
                continue
            data = {kind: "".join(of) for kind, of in output["data"].items()}
            if "image/svg+xml" in data:
                parts.append(image(data["image/svg+xml"]))
            elif "text/html" in data:
                html = _SVG.sub(lambda found: image(found[0]), data["text/html"])
                parts.append(_block(html))
            else:
                parts.append(_screen(data["text/plain"]))
    title, *rest = parts
    first, _, more = title.partition("\n\n")
    return "\n\n".join([first, HEAD, *([more] if more else []), *rest]) + "\n", images


def _screen(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def _block(html: str) -> str:
    """Return HTML that Markdown leaves alone: without empty lines, styles and indentation."""
    html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    return (
        "<div>\n"
        + "\n".join(line.strip() for line in html.splitlines() if line.strip())
        + "\n</div>"
    )


def main() -> None:
    """Write the notebook, its page and its pictures."""
    if len(sys.argv) > 1:
        import nbformat

        nbformat.write(execute(NOTEBOOK, Path(sys.argv[1])), NOTEBOOK)
    text, images = page_of(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    NOTEBOOK.with_suffix(".md").write_text(text, encoding="utf-8")
    for name, svg in images.items():
        (DOCS / "images" / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
