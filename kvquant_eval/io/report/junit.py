"""``junit.xml``: one suite a candidate, one case a workload class, for CI pages that know nothing of KV caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as ET

from kvquant_eval.core.policy import Tier
from kvquant_eval.core.records import Decision
from kvquant_eval.core.text import safe
from kvquant_eval.io.report.names import candidate_mark, class_name, kv_name, model_name

ELEMENTS = {"FAIL": "failure", "HOLD": "failure", "INCONCLUSIVE": "error", "INVALID": "error"}
"""What a case carries for a verdict or decision; one that is not here passes."""
CAUSES = {
    Decision.HOLD: ("FAIL", (Tier.CRITICAL, Tier.SUPPORTING)),
    Decision.INCONCLUSIVE: ("INCONCLUSIVE", (Tier.CRITICAL,)),
}
"""The verdict of a class, and the tiers in which it explains the decision over the candidate."""
NO_CLASS = "no workload class"


def render(document: Mapping[str, Any]) -> str:
    """The document as JUnit XML. A candidate that is not promoted has a failure or an error, one that is promoted has
    neither: what a class that may not bar it left open is ``skipped``.
    """
    root = ET.Element("testsuites", name=safe(f"kvquant_eval {document['decision']}"))
    for candidate in document["candidates"]:
        name = safe(f"{model_name(document['model'])} {kv_name(candidate['kv'])}{candidate_mark(candidate)}")
        cases = list(_cases(candidate))
        found = [element for _, element, _, _ in cases]
        suite = ET.SubElement(root, "testsuite", name=name, tests=str(len(cases)))
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(found.count(kind)))
        _properties(suite, document, candidate)
        for workload, element, kind, reasons in cases:
            case = ET.SubElement(suite, "testcase", classname=name, name=safe(workload))
            if element:
                ET.SubElement(case, element, message=safe("; ".join(reasons) or kind), type=kind)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _cases(candidate: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """(Class, element or empty for a pass, verdict or decision, reasons). A decision that no class explains stands on
    every case.
    """
    classes, decision = candidate["classes"], candidate["decision"]
    promoted = decision == Decision.PROMOTE
    verdict, tiers = CAUSES.get(decision, ("", ()))
    explained = promoted or any(c["verdict"] == verdict and c["tier"] in tiers for c in classes.values())
    for workload, judged in classes.items():
        kind, reasons = (judged["verdict"], judged["reasons"]) if explained else (decision, candidate["reasons"])
        element = ELEMENTS.get(kind, "")
        yield class_name(workload, judged), "skipped" if element and promoted else element, kind, reasons
    if not classes:
        yield NO_CLASS, ELEMENTS.get(decision, "skipped"), decision, candidate["reasons"]


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
