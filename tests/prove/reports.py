"""A report that holds, for tests to change."""

from lab.prove import Memory, Place, RankRow, Recipe, Report, RoundTrip, StepRow, Wire

PLACE = Place(topology="quad", nodes=4, world_size=4, torch="2.13.0", backend="gloo")
STEP = StepRow(
    step=1,
    epoch=1,
    one_process_loss=1.0,
    ranks_loss=1.0,
    one_process_parameter_sum=2.0,
    ranks_parameter_sum=2.0,
    one_process_sha256="aa",
    ranks_sha256="ab",
    gradient_difference=3e-8,
    parameter_difference=1.2e-7,
    optimizer_difference=6e-9,
    relative_difference=4e-7,
    ranks_equal=True,
)
BITWISE_STEP = StepRow(1, 1, 1.0, 1.0, 2.0, 2.0, "aa", "aa", 0.0, 0.0, 0.0, 0.0, True)
RANKS = tuple(RankRow(rank, f"node{rank}", 2.0, 0.5, 3e-8, 1.2e-7) for rank in range(4))
WIRE = Wire(measured=[1501, 1500, 1502, 1501], formula="2 (N-1)/N S", expected=1500, binding=True)
MEMORY = Memory(
    parameters=[1000] * 4,
    gradients=[1000] * 4,
    optimizer=[2000] * 4,
    peak=[4300] * 4,
    unsharded=None,
    model=1000,
    unit=200,
    expected=4000,
    most=None,
    unsharded_most=None,
    binding=True,
)
GOOD = Report(
    place=PLACE,
    recipe=Recipe(),
    steps=(STEP,),
    ranks=RANKS,
    batch_difference=3e-8,
    round_trip=RoundTrip(shards=True, state_dict=None),
    wire=WIRE,
    memory=MEMORY,
)
