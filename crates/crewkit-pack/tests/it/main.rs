//! Tests of crewkit-pack through its public interface.

#[cfg(test)]
mod deploy;
#[cfg(test)]
mod legacy;
#[cfg(test)]
mod pack;
#[cfg(test)]
mod races;
#[cfg(test)]
mod real;
#[cfg(test)]
mod rollback;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod walk;
#[cfg(test)]
mod world;
