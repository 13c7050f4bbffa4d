//! Chart for Helm, made from the text of a manifest.
//!
//! `flexvol manifest helm` makes the manifest of a request that has marks in place of Helm's
//! values, so the objects of the chart are those of the manifest. Here each mark becomes an
//! expression. A chart is for one platform, because its objects contain what the pods need there.

use flexvol_terminal::emit;
use serde_json::Value;

/// Marks of the request, as its text quotes them, and the expressions that Helm reads there. A
/// longer mark comes before a mark that is a part of it.
const MARKS: &[(&str, &str)] = &[
    // The name contains the digest of the mark of the policy.
    (
        "\"flexvol-helm-name-policy-44ca4cd3\"",
        "\"{{ .Release.Name }}-policy-{{ toJson .Values.policy | sha256sum | trunc 8 }}\"",
    ),
    ("\"flexvol-helm-policy\"", "{{ toJson .Values.policy | quote }}"),
    ("\"flexvol-helm-image\"", "{{ .Values.image | quote }}"),
    (
        "\"--plugin-dir=/flexvol-helm-directory\"",
        "{{ printf \"--plugin-dir=%s\" .Values.pluginDir | quote }}",
    ),
    ("\"/flexvol-helm-directory\"", "{{ .Values.pluginDir | quote }}"),
    ("flexvol-helm-namespace", "{{ .Release.Namespace }}"),
    ("flexvol-helm-name", "{{ .Release.Name }}"),
];

/// Marked lines that become several lines, or none.
const LISTS: &[(&str, &str)] = &[
    (
        "- \"--flexvol-helm-arguments\"",
        "{{- range .Values.set }}
- {{ printf \"--set=%s\" . | quote }}
{{- end }}
{{- if .Values.takeOver }}
- \"--take-over\"
{{- end }}
{{- if .Values.allowDowngrade }}
- \"--allow-downgrade\"
{{- end }}",
    ),
    ("- \"flexvol-helm/tmpfs\"", "{{- range .Values.drivers }}\n- {{ . | quote }}\n{{- end }}"),
];

const CHART: &str = concat!(
    "apiVersion: v2\n\
     name: flexvol\n\
     description: FlexVolume drivers on every node\n\
     type: application\n\
     version: \"",
    env!("CARGO_PKG_VERSION"),
    "\"\nappVersion: \"",
    env!("CARGO_PKG_VERSION"),
    "\"\n"
);

/// Schema of the values: Helm refuses a misspelt name or a wrong type.
const SCHEMA: &str = r#"{
  "$schema": "http://json-schema.org/draft-07/schema#",
  "type": "object",
  "additionalProperties": false,
  "required": ["image", "drivers", "pluginDir"],
  "properties": {
    "image": {"type": "string", "pattern": "^[!-~]+$"},
    "drivers": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    "pluginDir": {"type": "string", "pattern": "^/[^:]+$"},
    "set": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "takeOver": {"type": "boolean"},
    "allowDowngrade": {"type": "boolean"},
    "policy": {"type": "object"},
    "global": {"type": "object"}
  }
}
"#;

/// Text that Helm shows after the installation.
const NOTES: &str = "\
Drivers are put into {{ .Values.pluginDir }} on every node:

  kubectl --namespace {{ .Release.Namespace }} rollout status daemonset/{{ .Release.Name }}
  kubectl --namespace {{ .Release.Namespace }} logs daemonset/{{ .Release.Name }}

If no pod appears, Pod Security forbids directories of the host in this namespace:

  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=privileged

To uninstall the drivers as well, run flexvol uninstall on the nodes, or make the chart with
--uninstall-on-exit: volumes that are mounted could not be unmounted without them.
";

/// Description of each value.
const VALUES: &[(&str, &str)] = &[
    ("image", "The image, with the program as /flexvol."),
    ("drivers", "Drivers as flexvol install takes them: [VENDOR/]DRIVER[=WHAT]."),
    ("pluginDir", "The plugin directory as the host sees it (flexvol locate)."),
    (
        "set",
        "Settings for every driver or one, as install takes them: [DRIVER:]KEY=VALUE. No place for a secret.",
    ),
    ("takeOver", "Take over drivers of these names that flexvol did not install."),
    ("allowDowngrade", "Replace newer versions of the drivers."),
    ("policy", "The policy for every driver."),
];

/// Returns names and texts of a chart's files, from the manifest of the marked request and the
/// requested values.
pub fn files(marked: &str, values: &Value) -> [(&'static str, String); 5] {
    [
        ("Chart.yaml", CHART.to_owned()),
        ("values.yaml", documented(values)),
        ("values.schema.json", SCHEMA.to_owned()),
        ("templates/flexvol.yaml", template(marked)),
        ("templates/NOTES.txt", NOTES.to_owned()),
    ]
}

/// Returns the objects with expressions, without the namespace: Helm creates it, or it exists.
fn template(marked: &str) -> String {
    // The notes stand before the first document, which may be of any kind.
    let objects = marked.find("apiVersion:").unwrap_or_default();
    let mut filled = marked[..objects].to_owned();
    let documents = marked[objects..].split("---\n");
    let documents: Vec<_> = documents.filter(|it| !it.contains("kind: \"Namespace\"")).collect();
    for line in documents.join("---\n").lines() {
        let (indent, text) = line.split_at(line.len() - line.trim_start().len());
        let list = LISTS.iter().find(|(mark, _)| *mark == text);
        for part in list.map_or(text, |(_, lines)| lines).lines() {
            filled.extend([indent, part, "\n"]);
        }
    }
    MARKS.iter().fold(filled, |text, (mark, expression)| text.replace(mark, expression))
}

/// Returns the values, each with its description.
fn documented(values: &Value) -> String {
    let mut text = String::new();
    for (name, what) in VALUES {
        let mut value = Value::Object(serde_json::Map::new());
        value[*name] = values[*name].clone();
        let gap = if text.is_empty() { "" } else { "\n" };
        text.extend([gap, "# ", what, "\n", &emit::document(&value)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_value_is_documented_and_has_a_rule() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let mut names: Vec<_> = VALUES.iter().map(|(name, _)| *name).chain(["global"]).collect();
        names.sort_unstable();
        let mut rules: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
        rules.sort_unstable();
        assert_eq!(names, rules);
        let expressions = MARKS.iter().chain(LISTS).map(|(_, text)| *text).collect::<String>();
        for (name, _) in VALUES {
            assert!(expressions.contains(&format!(".Values.{name}")), "{name}");
        }
        assert_eq!(expressions.matches("{{").count(), expressions.matches("}}").count());
    }

    #[test]
    fn notes_stay_and_the_namespace_goes() {
        let text = "# before: x\napiVersion: \"v1\"\nkind: \"Namespace\"\n---\napiVersion: \"v1\"\nargs:\n  - \"flexvol-helm/tmpfs\"\n";
        let filled = template(text);
        assert_eq!(
            filled,
            "# before: x\napiVersion: \"v1\"\nargs:\n  {{- range .Values.drivers }}\n  - {{ . | quote }}\n  {{- end }}\n"
        );
    }

    #[test]
    fn a_value_is_under_what_it_is() {
        let text = documented(&json!({"image": "a/b:1", "set": ["size=64Mi"]}));
        let first = format!("# {}\nimage: \"a/b:1\"\n\n# {}\n", VALUES[0].1, VALUES[1].1);
        assert!(text.starts_with(&first), "{text}");
        assert!(text.contains("\nset:\n  - \"size=64Mi\"\n"), "{text}");
    }
}
