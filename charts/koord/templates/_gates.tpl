{{/*
Parses feature gates as the programs do: JSON {NAME: bool}. A wrong text fails with the name of its value.
Arguments: value (its path), text.
*/}}
{{- define "koord.gates.parse" -}}
{{- $value := .value -}}
{{- $gates := dict -}}
{{- range $entry := splitList "," (toString .text) -}}
{{- if trim $entry -}}
{{- $pair := splitn "=" 2 $entry -}}
{{- $name := trim $pair._0 -}}
{{- $text := trim (toString (default "" $pair._1)) -}}
{{- if has $text (list "1" "t" "T" "true" "TRUE" "True") -}}
{{- $_ := set $gates $name true -}}
{{- else if has $text (list "0" "f" "F" "false" "FALSE" "False") -}}
{{- $_ := set $gates $name false -}}
{{- else -}}
{{- fail (printf "%s: invalid entry %q: expected NAME=true or NAME=false" $value (trim $entry)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $gates -}}
{{- end }}

{{/* The values with feature gates, by program. */}}
{{- define "koord.gates.values" -}}
manager: {path: featureGates, text: {{ .Values.featureGates | default "" | toString | quote }}}
koordlet: {path: koordlet.features, text: {{ .Values.koordlet.features | default "" | toString | quote }}}
scheduler: {path: scheduler.featureGates, text: {{ .Values.scheduler.featureGates | default "" | toString | quote }}}
descheduler: {path: descheduler.featureGates, text: {{ .Values.descheduler.featureGates | default "" | toString | quote }}}
{{- end }}

{{/*
Fails for gates that their program lacks: it would not start. Names the value to which the gate belongs.
*/}}
{{- define "koord.gates.check" -}}
{{- $tables := .Files.Get "files/gates.yaml" | fromYaml -}}
{{- $values := include "koord.gates.values" . | fromYaml -}}
{{- range $program, $value := $values -}}
{{- range $name, $on := include "koord.gates.parse" (dict "value" $value.path "text" $value.text) | fromJson -}}
{{- $gate := get (get $tables $program) $name -}}
{{- if has $name (list "AllAlpha" "AllBeta") -}}
{{- else if not $gate -}}
{{- $owners := list -}}
{{- range $other, $table := $tables -}}
{{- if and (ne $other $program) (hasKey $table $name) -}}
{{- $owners = append $owners (get (get $values $other) "path") -}}
{{- end -}}
{{- end -}}
{{- if $owners -}}
{{- fail (printf "%s: %s is no gate of %s, set it in %s" $value.path $name $program (join " or " $owners)) -}}
{{- else -}}
{{- fail (printf "%s: no program has a feature gate %q" $value.path $name) -}}
{{- end -}}
{{- else if and (eq $gate.stage "stable") (not $on) -}}
{{- fail (printf "%s: %s cannot be set to false, the feature is stable" $value.path $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
The gates of a program in force, as JSON {NAME: bool}: a named gate wins over its group, a group over the default.
Arguments: root, program.
*/}}
{{- define "koord.gates" -}}
{{- $value := get (include "koord.gates.values" .root | fromYaml) .program -}}
{{- $set := include "koord.gates.parse" (dict "value" $value.path "text" $value.text) | fromJson -}}
{{- $gates := dict -}}
{{- range $name, $gate := get (.root.Files.Get "files/gates.yaml" | fromYaml) .program -}}
{{- $group := get (dict "alpha" "AllAlpha" "beta" "AllBeta" "stable" "") $gate.stage -}}
{{- if hasKey $set $name -}}
{{- $_ := set $gates $name (get $set $name) -}}
{{- else if hasKey $set $group -}}
{{- $_ := set $gates $name (get $set $group) -}}
{{- else -}}
{{- $_ := set $gates $name $gate.default -}}
{{- end -}}
{{- end -}}
{{- toJson $gates -}}
{{- end }}
