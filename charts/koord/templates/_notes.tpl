{{/*
The values that were given and have no effect, one a line: `VALUE: reason`. Keys of Koordinator that koord does not read
are not in values.yaml, so a key that exists was given.
*/}}
{{- define "koord.notes.ineffective" -}}
{{- $values := .Values -}}
{{- $lines := list -}}
{{- $keys := list
  (dict "path" "nameOverride" "why" "names are those of Koordinator's objects")
  (dict "path" "fullnameOverride" "why" "names are those of Koordinator's objects")
  (dict "path" "installation.roleListGroups" "why" "roles list the groups that the programs use")
  (dict "path" "koordlet.hostDirs.kubeletConfigDir" "why" "koordlet does not read /etc/kubernetes")
  (dict "path" "koordlet.hostDirs.podResourcesProxyPath" "why" "the gate PodResourcesProxy is not built yet")
  (dict "path" "manager.resyncPeriod" "why" "changes are watched, and lost ones are recovered by a relist")
  (dict "path" "scheduler.compatible122FeatureGates" "why" "Kubernetes 1.22 is not supported")
  (dict "path" "scheduler.compatibleBelow122FeatureGates" "why" "Kubernetes below 1.22 is not supported")
-}}
{{- range $key := $keys -}}
{{- $at := $values -}}
{{- $given := true -}}
{{- range splitList "." $key.path -}}
{{- if and $given (kindIs "map" $at) (hasKey $at .) -}}
{{- $at = get $at . -}}
{{- else -}}
{{- $given = false -}}
{{- end -}}
{{- end -}}
{{- if $given -}}
{{- $lines = append $lines (printf "%s: %s" $key.path $key.why) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $values.deviceDaemon -}}
{{- if ne $name "enabled" -}}
{{- $lines = append $lines (printf "deviceDaemon.%s: koord has no device daemon yet" $name) -}}
{{- end -}}
{{- end -}}
{{- if eq ($values.imageRepositoryHost | default "") (include "koord.upstreamHost" .) -}}
{{- $lines = append $lines "imageRepositoryHost: Koordinator's default counts as not given" -}}
{{- end -}}
{{- $pinned := list -}}
{{- range $component, $name := dict "koordlet" "koordlet" "manager" "koord-manager" "scheduler" "koord-scheduler" "descheduler" "koord-descheduler" -}}
{{- if include "koord.imagePinsUpstream" (dict "image" (get $values $component).image "name" $name) -}}
{{- $pinned = append $pinned (printf "%s.image" $component) -}}
{{- end -}}
{{- end -}}
{{- if $pinned -}}
{{- $lines = append $lines (printf "%s: Koordinator's default images count as not given" (join ", " $pinned)) -}}
{{- end -}}
{{- $tables := .Files.Get "files/gates.yaml" | fromYaml -}}
{{- range $program, $value := include "koord.gates.values" . | fromYaml -}}
{{- range $name, $on := include "koord.gates.parse" (dict "value" $value.path "text" $value.text) | fromJson -}}
{{- if get (get (get $tables $program) $name | default dict) "inert" -}}
{{- $lines = append $lines (printf "%s %s: the log of %s has the reason at start" $value.path $name $program) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $values.koordlet.nodePolicy (not (include "koord.kubeAtLeast" (dict "root" . "version" "1.32"))) -}}
{{- $lines = append $lines "koordlet.nodePolicy: needs Kubernetes 1.32; koordlets can write the objects of other nodes" -}}
{{- end -}}
{{- if and $values.networkPolicies.metricsFrom (not $values.networkPolicies.enabled) -}}
{{- $lines = append $lines "networkPolicies.metricsFrom: networkPolicies.enabled is false" -}}
{{- end -}}
{{- if and $values.networkPolicies.enabled (or $values.manager.hostNetwork $values.scheduler.hostNetwork $values.descheduler.hostNetwork) -}}
{{- $lines = append $lines "networkPolicies: pods on the host's network are not covered" -}}
{{- end -}}
{{- range $lines }}
{{ . }}
{{- end -}}
{{- end }}

{{/* Warnings, one a line. */}}
{{- define "koord.notes.warnings" -}}
{{- $values := .Values -}}
{{- $lines := list -}}
{{- range $component, $name := dict "koordlet" "koordlet" "manager" "koord-manager" "scheduler" "koord-scheduler" "descheduler" "koord-descheduler" -}}
{{- $image := include "koord.image" (dict "root" $ "image" (get $values $component).image "name" $name) -}}
{{- if contains "koordinator-sh/" $image -}}
{{- $lines = append $lines (printf "%s.image: %s is an image of Koordinator, which lacks permissions and flags of this chart" $component $image) -}}
{{- end -}}
{{- end -}}
{{- if include "koord.kubeAtLeast" (dict "root" . "version" "1.36") -}}
{{- $lines = append $lines (printf "Kubernetes %s: koord is tested with 1.35 and older" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- $fails := list -}}
{{- range $name, $policy := $values.webhookConfiguration.failurePolicy -}}
{{- if eq $policy "Fail" -}}{{- $fails = append $fails $name -}}{{- end -}}
{{- end -}}
{{- if and $fails (lt (int $values.manager.replicas) 2) -}}
{{- $lines = append $lines (printf "webhookConfiguration.failurePolicy.%s: Fail with one replica of the manager: requests are refused while it restarts" (first $fails)) -}}
{{- end -}}
{{- if gt (int $values.webhookConfiguration.timeoutSeconds) 10 -}}
{{- $lines = append $lines (printf "webhookConfiguration.timeoutSeconds: each creation of a pod waits %v s while no manager answers" $values.webhookConfiguration.timeoutSeconds) -}}
{{- end -}}
{{- if and $values.scheduler.hostNetwork (eq (int $values.scheduler.securePort) 10259) -}}
{{- $lines = append $lines "scheduler.hostNetwork: kube-scheduler uses port 10259 of its node too; set scheduler.securePort" -}}
{{- end -}}
{{- if eq (include "koord.kubeletAccess" .) "proxy" -}}
{{- $lines = append $lines "koordlet.kubeletAccess: with nodes/proxy, koordlet's token allows commands in every pod" -}}
{{- end -}}
{{- range $name, $fields := include "koord.notes.fields" . | fromYaml -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name -}}
{{- $managed := and $values.crds.managed (get $values.crds (first (splitList "." $name))) -}}
{{- if and $live (not $managed) -}}
{{- $schema := toJson $live.spec.versions -}}
{{- range $fields -}}
{{- if not (contains (printf "%q:" .) $schema) -}}
{{- $lines = append $lines (printf "CRD %s lacks %s, so the API server drops what koord writes there: apply koord's definition" $name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $lines }}
{{ . }}
{{- end -}}
{{- end }}

{{/* Fields that the definitions of Koordinator's chart v1.8.0 lack. */}}
{{- define "koord.notes.fields" -}}
nodemetrics.slo.koordinator.sh: [numaUsages, prodPeakMetric]
nodeslos.slo.koordinator.sh: [pageCacheEnable, pageCacheLimitEnabled]
{{- end }}

{{/* Values that open or close all gates of a stage, with the gates that change. */}}
{{- define "koord.notes.groups" -}}
{{- $tables := .Files.Get "files/gates.yaml" | fromYaml -}}
{{- range $program, $value := include "koord.gates.values" . | fromYaml -}}
{{- $set := include "koord.gates.parse" (dict "value" $value.path "text" $value.text) | fromJson -}}
{{- if or (hasKey $set "AllAlpha") (hasKey $set "AllBeta") -}}
{{- $changed := list -}}
{{- range $name, $on := include "koord.gates" (dict "root" $ "program" $program) | fromJson -}}
{{- $gate := get (get $tables $program) $name -}}
{{- if and (ne $on $gate.default) (not $gate.inert) -}}
{{- $changed = append $changed (printf "%s=%v" $name $on) -}}
{{- end -}}
{{- end }}
{{ $value.path }}: {{ join ", " $changed }}
{{- end -}}
{{- end -}}
{{- end }}
