{{- define "koord.namespace" -}}
{{- .Values.installation.namespace -}}
{{- end }}

{{- define "koord.upstreamHost" -}}
registry.cn-beijing.aliyuncs.com
{{- end }}

{{/*
Whether image values pin Koordinator's image of its chart v1.8.0, completely: "true" or "".
Arguments: image, name.
*/}}
{{- define "koord.imagePinsUpstream" -}}
{{- if and (eq (toString .image.repository) (printf "koordinator-sh/%s" .name)) (eq (toString .image.tag) "v1.8.0") (not .image.digest) -}}
true
{{- end -}}
{{- end }}

{{/*
The image of a component. Arguments: root, image (its values), name (of the image).
Koordinator's own values count as not given, so that its values.yaml does not start its programs with koord's flags.
*/}}
{{- define "koord.image" -}}
{{- $host := .root.Values.imageRepositoryHost | default "localhost" -}}
{{- $given := not (include "koord.imagePinsUpstream" .) -}}
{{- $repository := ternary (.image.repository | default "") "" $given -}}
{{- $tag := ternary (.image.tag | default "" | toString) "" $given -}}
{{- if and (eq $host (include "koord.upstreamHost" .)) (not (hasPrefix "koordinator-sh/" $repository)) -}}
{{- $host = "localhost" -}}
{{- end -}}
{{- $name := printf "%s/%s" (trimSuffix "/" $host) ($repository | default (printf "koord/%s" .name)) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name ($tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "koord.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A nodeAffinity; Koordinator's chart takes an affinity for koordlet, so that both forms are accepted. */}}
{{- define "koord.affinity" -}}
{{- with . }}
affinity:
  nodeAffinity:
{{- toYaml (.nodeAffinity | default .) | nindent 4 }}
{{- end }}
{{- end }}

{{/* The fields that the pods of all Deployments share. Arguments: root, name, values (of the component). */}}
{{- define "koord.deploymentPod" -}}
serviceAccountName: {{ .name }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: 10
{{- include "koord.pullSecrets" .root }}
{{- if .values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- include "koord.affinity" .values.nodeAffinity }}
topologySpreadConstraints:
# Two pods of a revision share a node only if no other accepts one; on a single node all run.
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: DoNotSchedule
  nodeTaintsPolicy: Honor
  matchLabelKeys: [pod-template-hash]
  labelSelector:
    matchLabels: {koord-app: {{ .name }}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The fields of a Deployment above its pods. Arguments: name, values. */}}
{{- define "koord.deploymentSpec" -}}
replicas: {{ .values.replicas }}
minReadySeconds: 3
selector:
  matchLabels: {koord-app: {{ .name }}}
strategy:
  type: RollingUpdate
  rollingUpdate: {maxSurge: 100%, maxUnavailable: 0}
{{- end }}

{{- define "koord.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/*
The objects of a file in files/, in the chart's namespace, as JSON {"items": [...]}. The roles, webhooks and policies
there are tested with the programs. Arguments: root, file.
*/}}
{{- define "koord.objects" -}}
{{- $text := .root.Files.Get (printf "files/%s" .file) -}}
{{- if not $text }}{{ fail (printf "the chart has no files/%s" .file) }}{{ end -}}
{{- $text = replace "koordinator-system" (include "koord.namespace" .root) $text -}}
{{- $items := list -}}
{{- range splitList "\n---\n" $text -}}
{{- $items = append $items (fromYaml .) -}}
{{- end -}}
{{- toJson (dict "items" $items) -}}
{{- end }}

{{/*
The objects of a file in files/, as YAML. Arguments: root, file, annotations (of the account; may be empty).
*/}}
{{- define "koord.rbac" -}}
{{- $annotations := .annotations -}}
{{- range (fromJson (include "koord.objects" .)).items -}}
{{- if and (eq .kind "ServiceAccount") $annotations }}{{ $_ := set .metadata "annotations" $annotations }}{{ end }}
---
{{ toYaml . }}
{{- end -}}
{{- end }}

{{/* Whether the cluster's version is at least the given one: "true" or "". Arguments: root, version such as "1.33". */}}
{{- define "koord.kubeAtLeast" -}}
{{- if semverCompare (printf ">= %s.0-0" .version) .root.Capabilities.KubeVersion.Version -}}
true
{{- end -}}
{{- end }}

{{- define "koord.kubeletAccess" -}}
{{- if ne .Values.koordlet.kubeletAccess "auto" -}}
{{- .Values.koordlet.kubeletAccess -}}
{{- else if include "koord.kubeAtLeast" (dict "root" . "version" "1.33") -}}
kubelet
{{- else -}}
apiserver
{{- end -}}
{{- end }}

{{/* A directory with one slash at its end. */}}
{{- define "koord.dir" -}}
{{- trimSuffix "/" . -}}/
{{- end }}
