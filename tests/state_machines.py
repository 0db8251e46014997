"""State machines at random: tests draw the same examples each time, `make fuzz` others, and more."""

from hypothesis import settings

CI_EXAMPLES = 100  # of CI's profile, which tries as many as tests name; others try fewer


def driven(examples, steps):
    """Settings for so many examples, of at most so many steps; fewer or more where the profile wants that."""
    usual = settings.default.max_examples
    most = max(examples, usual) if usual >= CI_EXAMPLES else examples * usual // 250
    return settings(max_examples=most, stateful_step_count=steps)


def replay(machine, *steps):
    """Take a machine through steps that once failed, each a rule's name and its arguments."""
    state = machine()
    invariants = machine.setup_state().invariants
    for name, arguments in steps:
        getattr(state, name)(**arguments)
        for each in invariants:
            each.function(state)
    state.teardown()
