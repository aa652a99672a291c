use crate::Outcome;
pub(crate) fn run() -> Outcome {
    Ok(())
}
