{{- define "kcover.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* No object of ours is longer than this and "-controller". */}}
{{- define "kcover.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kcover.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kcover.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide objects carry the namespace too, so that two releases never share one. */}}
{{- define "kcover.clustername" -}}
{{- printf "%s-%s" .Release.Namespace (include "kcover.fullname" .) -}}
{{- end -}}

{{/* The first label is fixed: `trace` and the kubectl plug-in find agents by it, and so may a Prometheus. */}}
{{- define "kcover.selector" -}}
app.kubernetes.io/name: kcover-ebpf
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kcover.labels" -}}
{{ include "kcover.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kcover.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "kcover.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "kcover.fullname" .root }}-{{ .component }}
{{- end -}}

{{/* A value of "auto" is true where the cluster serves the resource; the answer is "true" or nothing. */}}
{{- define "kcover.wanted" -}}
{{- if or (eq (toString .value) "true") (and (eq (toString .value) "auto") (.root.Capabilities.APIVersions.Has .api)) -}}
true
{{- end -}}
{{- end -}}

{{- define "kcover.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end -}}

{{/* What the controller reads as --repairs. */}}
{{- define "kcover.repairs" -}}
{{- pick .Values.controller.repair "atOnce" "mostPerDay" "steps" | toJson -}}
{{- end -}}

{{- define "kcover.identity" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- end -}}
