"""``junit.xml``: one suite a candidate, one case a workload class, for CI pages that know nothing of KV caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from kvquant_eval.core.text import safe
from kvquant_eval.io.report.names import kv_name, model_name

ELEMENTS = {"FAIL": "failure", "HOLD": "failure", "INCONCLUSIVE": "skipped", "INVALID": "error"}
"""What a case carries for a verdict or decision; one that is not here passes."""


def render(document: Mapping[str, Any]) -> str:
    """The document as JUnit XML. A candidate that is not promoted never shows passing cases alone."""
    root = ET.Element("testsuites", name=safe(f"kvquant_eval {document['decision']}"))
    for candidate in document["candidates"]:
        name = safe(f"{model_name(document['model'])} {kv_name(candidate['kv'])}")
        cases = _cases(candidate)
        found = [element for _, element, _ in cases]
        suite = ET.SubElement(root, "testsuite", name=name, tests=str(len(cases)))
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(found.count(kind)))
        _properties(suite, document, candidate)
        for workload, element, reasons in cases:
            case = ET.SubElement(suite, "testcase", classname=name, name=safe(workload))
            if element:
                message = safe("; ".join(reasons))
                ET.SubElement(case, element, message=message, type=candidate["decision"])
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _cases(candidate: Mapping[str, Any]) -> list[tuple[str, str, Sequence[str]]]:
    """(Class, element or empty for a pass, reasons). A decision that no class explains stands on every case."""
    classes, decision = candidate["classes"], candidate["decision"]
    explained = any(judged["verdict"] in ELEMENTS for judged in classes.values())
    if decision == "INVALID" or (decision in ELEMENTS and not explained):
        return [(workload, ELEMENTS[decision], candidate["reasons"]) for workload in classes]
    return [(workload, ELEMENTS.get(judged["verdict"], ""), judged["reasons"]) for workload, judged in classes.items()]


def _properties(suite: ET.Element, document: Mapping[str, Any], candidate: Mapping[str, Any]) -> None:
    properties = ET.SubElement(suite, "properties")
    values = {
        "candidate": candidate["name"],
        "decision": candidate["decision"],
        "revision": document["model"]["revision"],
        "golden": f"{document['golden']['name']} {document['golden']['version']} {document['golden']['sha256']}",
        "run_id": document.get("run_id"),
    }
    for name, value in values.items():
        if value is not None:
            ET.SubElement(properties, "property", name=name, value=safe(str(value)))
