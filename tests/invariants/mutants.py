"""Each invariant of the design, broken by hand in one place, and the test that must fail then."""

from __future__ import annotations

from dataclasses import dataclass

PIPELINE, RESUME = "tests/unit/test_pipeline.py", "tests/unit/test_resume.py"
JUDGE, GATE = "kvquant_eval/core/judge.py", "kvquant_eval/core/gate.py"
SOUNDNESS = "kvquant_eval/core/soundness.py"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """``old`` stands once in ``file`` and becomes ``new``; ``test`` must fail for it."""

    invariant: int
    what: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        invariant=1,
        what="turns without a pair of scores are passed over",
        file=GATE,
        old="    if missing:\n",
        new="    if missing and False:\n",
        test=f"{PIPELINE}::test_each_fault_has_its_decision_and_reason",
    ),
    Mutant(
        invariant=1,
        what="an engine that died is no finding",
        file=SOUNDNESS,
        old="    if record.unfinished and not record.error:\n",
        new="    if True:\n",
        test=f"{PIPELINE}::test_a_baseline_that_is_none_makes_the_gate_invalid",
    ),
    Mutant(
        invariant=1,
        what="an arm with blocks left decides",
        file=GATE,
        old="    if invalid or unfinished:\n",
        new="    if invalid:\n",
        test=f"{RESUME}::test_a_gate_that_is_out_of_time_stops_and_goes_on",
    ),
    Mutant(
        invariant=1,
        what="preemptions are not counted",
        file=SOUNDNESS,
        old='    preemptions = int(record.counts.get("preemptions", 0))\n',
        new="    preemptions = 0\n",
        test=f"{PIPELINE}::test_each_fault_has_its_decision_and_reason",
    ),
    Mutant(
        invariant=2,
        what="the dtype is believed, not read back",
        file="kvquant_eval/core/attest.py",
        old="        if runs == wanted or ((windowed or whole) and not _is_quantized(layer)):\n",
        new="        if True:\n",
        test=f"{PIPELINE}::test_each_fault_has_its_decision_and_reason",
    ),
    Mutant(
        invariant=2,
        what="a quantized baseline is a baseline",
        file="kvquant_eval/core/attest.py",
        old="    return [_invalid(arm, what)] if quantized else []\n",
        new="    return []\n",
        test="tests/unit/core/test_attest.py::test_a_baseline_that_is_quantized",
    ),
    Mutant(
        invariant=3,
        what="differences from the baseline are not looked for",
        file=SOUNDNESS,
        old="    return judge_pair(record.arm.name, baseline.facts, record.facts, accepted)",
        new="    return []",
        test=f"{PIPELINE}::test_each_fault_has_its_decision_and_reason",
    ),
    Mutant(
        invariant=4,
        what="a turn that does not fit is run all the same",
        file="kvquant_eval/core/plan.py",
        old="    runnable = [turn for turn in turns if not turn.skip]\n",
        new="    runnable = list(turns)\n",
        test=f"{PIPELINE}::test_skipped_turns_forbid_promote_in_the_hardest_class",
    ),
    Mutant(
        invariant=5,
        what="an empty reply is unscored",
        file="kvquant_eval/core/score.py",
        old='        points, explanation = 0.0, replay.divergence or "empty reply"\n',
        new='        explanation = "empty reply"\n',
        test=f"{PIPELINE}::test_outcomes_are_counted_apart_and_stay_paired",
    ),
    Mutant(
        invariant=5,
        what="a turn that a conversation did not come to is unscored",
        file="kvquant_eval/core/walk.py",
        old="            return self._end(Outcome.DIVERGED, found)\n",
        new="            return self._end(Outcome.SKIPPED, found)\n",
        test="tests/cli/test_free_running.py::test_turns_behind_a_divergence_stay_paired_and_earn_nothing",
    ),
    Mutant(
        invariant=4,
        what="free running goes on from the recorded replies",
        file="kvquant_eval/core/walk.py",
        old="            self._messages += [message, *self._left[0].asked]\n",
        new='            self._messages += [{**message, "content": "as recorded"}, *self._left[0].asked]\n',
        test="tests/unit/core/test_walk.py::test_the_history_is_what_the_arm_said",
    ),
    Mutant(
        invariant=5,
        what="a rise of degenerate replies changes nothing",
        file=GATE,
        old="    tested = [f for f in findings if f.holds and f.p is not None]\n",
        new="    tested: list[Finding] = []\n",
        test=f"{PIPELINE}::test_a_rise_of_degenerate_replies_holds_what_every_score_lets_through",
    ),
    Mutant(
        invariant=5,
        what="a reply whose judge is down scores 0",
        file="kvquant_eval/core/score.py",
        old="            outcome, explanation = Outcome.INFRA_ERROR, score\n",
        new="            points, explanation = 0.0, score\n",
        test="tests/cli/test_judge.py::test_an_endpoint_that_is_down_is_no_evidence_and_never_0",
    ),
    Mutant(
        invariant=6,
        what="finished blocks are run again",
        file="kvquant_eval/replay.py",
        old="        todo = [block for block in order if block.index not in done]\n",
        new="        todo = list(order)\n",
        test=f"{RESUME}::test_the_same_command_goes_on_in_the_same_folder",
    ),
    Mutant(
        invariant=6,
        what="a torn tail stays in the journal",
        file="kvquant_eval/io/journal.py",
        old="            file.truncate(end)\n",
        new="            file.seek(end)\n",
        test="tests/unit/io/test_journal.py::test_cleaning_up_leaves_nothing_behind_the_last_block",
    ),
    Mutant(
        invariant=6,
        what="blocks of another arm are taken",
        file="kvquant_eval/io/journal.py",
        old='        if mark.get("arm") != self.fingerprint:\n',
        new="        if False:\n",
        test=f"{RESUME}::test_a_journal_of_another_arm_is_named_and_never_mixed_in",
    ),
    Mutant(
        invariant=6,
        what="conversations are cut between blocks",
        file="kvquant_eval/core/plan.py",
        old="    for _, turns_of in groupby(runnable, key=lambda turn: turn.conversation_id):\n",
        new="    for _, turns_of in groupby(runnable, key=lambda turn: turn.turn_id):\n",
        test="tests/unit/core/test_plan.py",
    ),
    Mutant(
        invariant=7,
        what="a held control changes nothing",
        file=JUDGE,
        old="            invalid=result.decision in (Decision.HOLD, Decision.INVALID),\n",
        new="            invalid=False,\n",
        test=f"{PIPELINE}::test_a_gate_that_holds_the_placebo_proves_nothing",
    ),
    Mutant(
        invariant=7,
        what="the repeat runs its blocks in the same order",
        file="kvquant_eval/core/plan.py",
        old="    random.Random(seed).shuffle(shuffled)\n",
        new="",
        test=f"{PIPELINE}::test_the_repeat_ran_in_another_order_and_gave_the_same",
    ),
    Mutant(
        invariant=8,
        what="the decision depends on the order of the journal",
        file="kvquant_eval/io/runfolder.py",
        old="key=lambda block: block.index)\n",
        new="key=lambda block: -block.seconds)\n",
        test="tests/unit/io/test_runfolder.py::test_replays_come_in_the_order_of_the_blocks",
    ),
    Mutant(
        invariant=8,
        what="another policy afterwards is not marked",
        file="kvquant_eval/decision.py",
        old='    post_hoc = pinned.get("policy_sha256") != policy_sha256(settings.policy)\n',
        new="    post_hoc = False\n",
        test=f"{PIPELINE}::test_another_policy_afterwards_is_marked",
    ),
    Mutant(
        invariant=8,
        what="attempts are not counted",
        file="kvquant_eval/decision.py",
        old='kept.get("attempts") or 1 + earlier_decisions(run.path, said["identity_sha256"]),\n',
        new="1,\n",
        test=f"{PIPELINE}::test_deciding_again_counts_attempts",
    ),
    Mutant(
        invariant=8,
        what="another policy afterwards takes the place of the run's own decision",
        file="kvquant_eval/pipeline.py",
        old="        if decided.post_hoc:\n",
        new="        if False:\n",
        test=f"{PIPELINE}::test_another_policy_afterwards_is_marked",
    ),
    Mutant(
        invariant=9,
        what="a changed golden file is taken",
        file="kvquant_eval/io/golden/store.py",
        old="        if found != pinned.sha256:\n",
        new="        if False:\n",
        test=f"{PIPELINE}::test_a_golden_set_that_changed_is_refused_before_any_engine_starts",
    ),
    Mutant(
        invariant=10,
        what="hidden characters go out as they are",
        file="kvquant_eval/core/text.py",
        old="_escape(char) if accents > MOST_ACCENTS or _is_hidden(char) else char",
        new="char",
        test="tests/hostile",
    ),
    Mutant(
        invariant=10,
        what="code is executed in weak isolation",
        file="kvquant_eval/evidence.py",
        old='return "" if settings.code.allow_execution or not executing(settings) else find_isolation().weakness',
        new='return ""',
        test="tests/unit/test_evidence.py",
    ),
    Mutant(
        invariant=10,
        what="the sandbox lets code start processes",
        file="kvquant_eval/io/sandboxed.py",
        old="    for number in numbers:\n",
        new="    for number in ():\n",
        test="tests/hostile/test_sandbox.py",
    ),
    Mutant(
        invariant=10,
        what="the model's name is a path",
        file="kvquant_eval/pipeline.py",
        old="    return _plain(f\"-{settings.model.id.split('/')[-1]}-",
        new='    return f"-{settings.model.id}"\n    return _plain(f"-',
        test=f"{PIPELINE}::test_the_model_name_is_no_path",
    ),
    Mutant(
        invariant=11,
        what="tables name the model without the effective dtype",
        file="kvquant_eval/io/tables.py",
        old='        "kv_effective": kv["effective"],\n',
        new="",
        test=f"{PIPELINE}::test_every_row_of_a_table_has_model_and_dtype",
    ),
    Mutant(
        invariant=11,
        what="the journal says the requested dtype only",
        file="kvquant_eval/replay.py",
        old='        "kv_effective": effective_dtype(facts) if facts else "not read back",\n',
        new="",
        test=f"{PIPELINE}::test_the_journal_says_whose_replays_it_has",
    ),
)
