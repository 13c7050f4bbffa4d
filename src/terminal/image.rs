//! Advice about the container image that a manifest names.

/// Returns a warning if the image's name does not begin with a registry.
pub fn without_registry(image: &str) -> Option<&'static str> {
    (!names_registry(image)).then_some(
        "the image names no registry, so nodes that do not have it ask docker.io for it: push it to a registry of \
         yours, and say --image REGISTRY/NAME:TAG",
    )
}

/// Reports whether an image's name begins with a registry, as container runtimes read it.
fn names_registry(image: &str) -> bool {
    let first = image.split_once('/').map_or("", |(first, _)| first);
    first.contains(['.', ':']) || first == "localhost"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_told_from_a_user_of_docker_io() {
        for (image, warns) in [
            ("flexvol:0.1.0", true),
            ("acme/flexvol", true),
            ("registry.example/flexvol:1", false),
            ("localhost/flexvol", false),
            ("host:5000/flexvol@sha256:12", false),
        ] {
            assert_eq!(without_registry(image).is_some(), warns, "{image}");
        }
    }
}
