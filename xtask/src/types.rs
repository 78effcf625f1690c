//! `cargo xtask types DIR [VERSION]` rewrites the table of wire facts of the built-in types from the
//! Go sources of Kubernetes.
//!
//! DIR holds `api`, `apimachinery`, `metrics`, `apiextensions-apiserver` and `kube-aggregator`: `staging/src/k8s.io` of a checkout
//! of kubernetes, or `pkg/mod/k8s.io` of a Go module cache, where VERSION (`v0.35.6`) is what follows
//! the `@`. The roots are the types of the present table that have a `TypeMeta`: to add a kind, add
//! a line `group/version.Kind ^meta/v1.TypeMeta=0` and run it.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Path of the table in the workspace.
const TABLE: &str = "crates/object/src/schema/types.txt";

/// Types whose JSON differs from their Go declaration, with the letter of the table.
const SPECIAL: &[(&str, &str)] = &[
    ("meta/v1.Time", "t"),
    ("meta/v1.MicroTime", "u"),
    ("meta/v1.Duration", "D"),
    ("meta/v1.FieldsV1", "F"),
    ("resource.Quantity", "Q"),
    ("intstr.IntOrString", "I"),
    ("runtime.RawExtension", "R"),
    ("runtime.Object", "R"),
    ("types.UID", "s"),
    ("apiextensions/v1.JSON", "J"),
    ("apiextensions/v1.JSONSchemaPropsOrBool", "|b"),
    ("apiextensions/v1.JSONSchemaPropsOrStringArray", "|s"),
    ("apiextensions/v1.JSONSchemaPropsOrArray", "|a"),
];

/// A Go type declaration.
#[derive(Clone)]
struct Declaration {
    /// `+marker=value` lines above it.
    markers: Vec<String>,
    body: DeclarationBody,
}

#[derive(Clone)]
enum DeclarationBody {
    Struct(Vec<Member>),
    /// Another type, as written.
    Alias(String),
}

#[derive(Clone)]
struct Member {
    markers: Vec<String>,
    /// Go type as written, with package aliases.
    go_type: String,
    tags: String,
}

/// Declarations and imports of one Go package.
#[derive(Default)]
struct Package {
    declarations: BTreeMap<String, Declaration>,
    /// Import alias to `core/v1` or the last element of the path.
    imports: BTreeMap<String, String>,
}

/// Rewrites the table.
///
/// # Errors
/// When a source cannot be read, or has syntax that this parser does not support.
pub(crate) fn run(root: &Path, from: PathBuf, version: Option<String>) -> Result<()> {
    let path = root.join(TABLE);
    let old = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut sources = Sources {
        from,
        version,
        packages: BTreeMap::new(),
    };
    let new = table(&old, &mut sources)?;
    std::fs::write(&path, new).with_context(|| path.display().to_string())
}

/// Returns the new text of the table.
fn table(old: &str, sources: &mut Sources) -> Result<String> {
    let mut todo: BTreeSet<String> = old
        .lines()
        .filter(|l| l.contains(" ^meta/v1.TypeMeta="))
        .filter_map(|l| Some(l.split(' ').next()?.to_owned()))
        .collect();
    let mut lines = BTreeMap::new();
    while let Some(name) = todo.pop_first() {
        let mut used = BTreeSet::new();
        let line = sources.line(&name, &mut used)?;
        lines.insert(name, line);
        todo.extend(used.into_iter().filter(|u| !lines.contains_key(u)));
    }
    let mut out: String = old
        .lines()
        .take_while(|l| l.starts_with('#'))
        .fold(String::new(), |text, l| text + l + "\n");
    for line in lines.values() {
        writeln!(out, "{line}")?;
    }
    Ok(out)
}

/// Reads the declarations of a file. gofmt makes a line-based reading safe.
fn parse(text: &str, into: &mut Package) {
    let mut markers = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim();
        if let Some(comment) = code.strip_prefix("//") {
            markers.extend(comment.trim().strip_prefix('+').map(str::to_owned));
            continue;
        }
        if let Some((alias, import)) = import(code) {
            into.imports.insert(alias, import);
        }
        if let Some(rest) = line.strip_prefix("type ")
            && let Some((name, ty)) = rest.split_once(' ')
        {
            let body = if ty == "struct {" {
                DeclarationBody::Struct(members(&mut lines))
            } else if ty == "struct{}" {
                DeclarationBody::Struct(Vec::new())
            } else {
                let ty = ty.trim_start_matches("= ");
                DeclarationBody::Alias(ty.split(" //").next().unwrap_or(ty).trim().to_owned())
            };
            let markers = std::mem::take(&mut markers);
            into.declarations
                .insert(name.to_owned(), Declaration { markers, body });
        } else if !code.is_empty() {
            markers.clear();
        }
    }
}

/// `alias "path"` or `"path"` of an import block.
fn import(code: &str) -> Option<(String, String)> {
    let (alias, path) = code.split_once('"')?;
    let path = path.strip_suffix('"')?;
    let alias = alias.trim_start_matches("import").trim();
    let mut parts = path.rsplit('/');
    let last = parts.next()?;
    let versioned = last.starts_with('v') && last[1..].starts_with(|c: char| c.is_ascii_digit());
    let package = match parts.next().filter(|_| versioned) {
        Some(group) => format!("{group}/{last}"),
        None => last.to_owned(),
    };
    if alias.contains(' ') || !path.contains('/') {
        return None;
    }
    let alias = if alias.is_empty() { last } else { alias };
    Some((alias.to_owned(), package))
}

fn members<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<Member> {
    let (mut markers, mut out) = (Vec::new(), Vec::new());
    for line in lines {
        if line == "}" {
            break;
        }
        let code = line.trim();
        if let Some(comment) = code.strip_prefix("//") {
            markers.extend(comment.trim().strip_prefix('+').map(str::to_owned));
            continue;
        }
        let mut parts = code.splitn(3, '`');
        if let (Some(declared), Some(tags)) = (parts.next(), parts.next()) {
            let mut words = declared.split_whitespace();
            let first = words.next().unwrap_or_default();
            let go_type = words.next().unwrap_or(first).to_owned();
            out.push(Member {
                markers: std::mem::take(&mut markers),
                go_type,
                tags: tags.to_owned(),
            });
        }
        markers.clear();
    }
    out
}

fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    let start = tags.find(&format!("{name}:\""))? + name.len() + 2;
    tags[start..].split('"').next()
}

fn marker<'a>(markers: &'a [String], name: &str) -> Option<&'a str> {
    markers
        .iter()
        .find_map(|m| m.strip_prefix(name)?.strip_prefix('='))
}

/// Text of a type in the table.
#[derive(Default)]
struct RenderedType {
    text: String,
    /// Markers of the named types on the way.
    markers: Vec<String>,
}

/// The Go packages, read when they are first named.
struct Sources {
    from: PathBuf,
    version: Option<String>,
    packages: BTreeMap<String, Package>,
}

impl Sources {
    fn directory(&self, package: &str) -> PathBuf {
        let (module, inside) = match package.split('/').next() {
            Some("meta") => ("apimachinery", format!("pkg/apis/{package}")),
            Some("apiextensions") => ("apiextensions-apiserver", format!("pkg/apis/{package}")),
            Some("apiregistration") => ("kube-aggregator", format!("pkg/apis/{package}")),
            Some("metrics") => ("metrics", format!("pkg/apis/{package}")),
            _ => ("api", package.to_owned()),
        };
        let version = self.version.as_ref().map(|v| format!("@{v}"));
        self.from
            .join(format!("{module}{}", version.unwrap_or_default()))
            .join(inside)
    }

    /// Returns the types that a Go package declares in its `types*.go`, parsed at the first call.
    fn package(&mut self, name: &str) -> Result<&Package> {
        if !self.packages.contains_key(name) {
            let directory = self.directory(name);
            let mut parsed = Package::default();
            let entries = std::fs::read_dir(&directory)
                .with_context(|| format!("cannot list {}", directory.display()))?;
            for entry in entries {
                let path = entry?.path();
                let file = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
                let declares = file.starts_with("types") && file.ends_with(".go");
                if declares && !file.contains("_test") && !file.contains("swagger") {
                    let text = std::fs::read_to_string(&path)
                        .with_context(|| path.display().to_string())?;
                    parse(&text, &mut parsed);
                }
            }
            self.packages.insert(name.to_owned(), parsed);
        }
        self.packages.get(name).context("the package was just read")
    }

    /// Returns the full name of a type, such as `core/v1.Pod` for `Pod` or `v1.Pod` in a package's source.
    fn full_name(&mut self, go_type: &str, package: &str) -> Result<String> {
        let Some((alias, name)) = go_type.split_once('.') else {
            return Ok(format!("{package}.{go_type}"));
        };
        let imports = &self.package(package)?.imports;
        let target = imports
            .get(alias)
            .with_context(|| format!("{package} does not import {alias}"))?;
        Ok(format!("{target}.{name}"))
    }

    fn declaration(&mut self, full: &str) -> Result<Declaration> {
        let (package, name) = full.split_once('.').context("a name has a package")?;
        self.package(package)?
            .declarations
            .get(name)
            .cloned()
            .with_context(|| format!("{package} does not declare {name}"))
    }

    /// Returns the line of one type, and adds the types it names to `used`.
    fn line(&mut self, full: &str, used: &mut BTreeSet<String>) -> Result<String> {
        let Declaration {
            markers,
            body: DeclarationBody::Struct(members),
        } = self.declaration(full)?
        else {
            bail!("{full} is not a struct");
        };
        let package = full.split('.').next().unwrap_or_default();
        let mut out = full.to_owned();
        if marker(&markers, "structType") == Some("atomic")
            || marker(&markers, "mapType") == Some("atomic")
        {
            out.push_str(" %-");
        }
        for member in members {
            let json = tag(&member.tags, "json").unwrap_or_default();
            let number = tag(&member.tags, "protobuf")
                .and_then(|p| p.split(',').nth(1))
                .unwrap_or("0");
            let (name, options) = json.split_once(',').unwrap_or((json, ""));
            let mut shown = RenderedType::default();
            self.show(&member.go_type, package, &mut shown, used)
                .with_context(|| format!("{full}.{name}"))?;
            if options.contains("inline") {
                write!(out, " ^{}={number}", shown.text)?;
            } else if name != "-" && !name.is_empty() {
                let flags = flags(&member, options, &shown);
                write!(out, " {name}={number}:{}{flags}", shown.text)?;
            }
        }
        Ok(out)
    }

    /// Appends the table's notation of a Go type to `out` and records the types that it uses.
    fn show(
        &mut self,
        go_type: &str,
        package: &str,
        out: &mut RenderedType,
        used: &mut BTreeSet<String>,
    ) -> Result<()> {
        if let Some(inner) = go_type.strip_prefix('*') {
            out.text.push('*');
            return self.show(inner, package, out, used);
        }
        if go_type == "[]byte" {
            out.text.push('y');
            return Ok(());
        }
        if let Some(inner) = go_type.strip_prefix("[]") {
            out.text.push('[');
            self.show(inner, package, out, used)?;
            out.text.push(']');
            return Ok(());
        }
        if let Some(map) = go_type.strip_prefix("map[") {
            let (_, inner) = map.split_once(']').context("a map has a key")?;
            out.text.push('{');
            self.show(inner, package, out, used)?;
            out.text.push('}');
            return Ok(());
        }
        let letter = match go_type {
            "string" => "s",
            "bool" => "b",
            "int32" | "uint32" => "i",
            "int" | "int64" => "l",
            "float64" => "d",
            _ => "",
        };
        if !letter.is_empty() {
            out.text.push_str(letter);
            return Ok(());
        }
        let full = self.full_name(go_type, package)?;
        if let Some((_, text)) = SPECIAL.iter().find(|(name, _)| *name == full) {
            out.text.push_str(text);
            return Ok(());
        }
        let declaration = self.declaration(&full)?;
        match declaration.body {
            DeclarationBody::Struct(_) => {
                out.text.push_str(&full);
                used.insert(full);
                Ok(())
            }
            DeclarationBody::Alias(target) => {
                out.markers.extend(declaration.markers);
                // A named type of a list of strings is a message in protobuf.
                if target == "[]string" && package != "meta/v1" {
                    out.text.push('W');
                    return Ok(());
                }
                let package = full.split('.').next().unwrap_or_default();
                self.show(&target, package, out, used)
            }
        }
    }
}

/// Returns the key of a list's elements, or that a value is owned as a whole.
fn flags(member: &Member, options: &str, shown: &RenderedType) -> String {
    let mut out = String::new();
    if options.contains("omitempty") || options.contains("omitzero") {
        out.push('?');
    }
    let get = |name: &str| marker(&member.markers, name).or_else(|| marker(&shown.markers, name));
    let strategy = tag(&member.tags, "patchStrategy").unwrap_or_default();
    let key = tag(&member.tags, "patchMergeKey");
    let is_list = shown.text.starts_with('[');
    let merged = strategy.split(',').any(|s| s == "merge") && is_list;
    if strategy.split(',').any(|s| s == "replace") {
        out.push('!');
    }
    if strategy.split(',').any(|s| s == "retainKeys") {
        out.push('~');
    }
    if merged {
        out.push('@');
        out.push_str(key.unwrap_or_default());
    }
    let keys: Vec<&str> = member
        .markers
        .iter()
        .filter_map(|m| m.strip_prefix("listMapKey="))
        .collect();
    let patch = match (merged, key) {
        (false, _) => "-".to_owned(),
        (true, key) => key.unwrap_or_default().to_owned(),
    };
    let apply = match get("listType") {
        Some("map") => keys.join(","),
        Some("set") => String::new(),
        Some("atomic") => "-".to_owned(),
        _ => patch.clone(),
    };
    let whole = get("mapType") == Some("atomic") || get("structType") == Some("atomic");
    if whole {
        out.push_str("%-");
    } else if is_list && apply != patch {
        out.push('%');
        out.push_str(&apply);
    }
    if let Some(text) = marker(&member.markers, "default")
        .and_then(|d| d.strip_prefix('"')?.strip_suffix('"'))
        .filter(|d| !d.is_empty() && !d.contains(' '))
    {
        out.push('$');
        out.push_str(text);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_struct_becomes_a_line() {
        let mut package = Package::default();
        let source = "package v1\n\nimport (\n\t\"k8s.io/apimachinery/pkg/api/resource\"\n\t\
            metav1 \"k8s.io/apimachinery/pkg/apis/meta/v1\"\n)\n\ntype Name string\n\n\
            // +structType=atomic\ntype Thing struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n\t\
            // +listType=map\n\t// +listMapKey=port\n\t// +listMapKey=protocol\n\t\
            Ports []Name `json:\"ports,omitempty\" patchStrategy:\"merge\" patchMergeKey:\"port\" protobuf:\"bytes,2,rep,name=ports\"`\n\t\
            // +default=\"TCP\"\n\tProtocol *Name `json:\"protocol\" protobuf:\"bytes,3,opt,name=protocol\"`\n\t\
            Sizes map[Name]resource.Quantity `json:\"sizes,omitempty\" protobuf:\"bytes,4,rep,name=sizes\"`\n}\n";
        parse(source, &mut package);
        let mut meta = Package::default();
        parse("type TypeMeta struct {\n}\n", &mut meta);
        let mut sources = Sources {
            from: PathBuf::new(),
            version: None,
            packages: [
                ("core/v1".to_owned(), package),
                ("meta/v1".to_owned(), meta),
            ]
            .into(),
        };
        let old = "# head\ncore/v1.Thing ^meta/v1.TypeMeta=0\n";
        assert_eq!(
            table(old, &mut sources).unwrap(),
            "# head\ncore/v1.Thing %- ^meta/v1.TypeMeta=0 ports=2:[s]?@port%port,protocol \
             protocol=3:*s$TCP sizes=4:{Q}?\nmeta/v1.TypeMeta\n"
        );
        assert!(table("core/v1.Gone ^meta/v1.TypeMeta=0\n", &mut sources).is_err());
    }
}
