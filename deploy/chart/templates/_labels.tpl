{{- /* On one line, so that `template` can place it anywhere. */ -}}
{{- define "tracer.labels" -}}
{app.kubernetes.io/name: tracer, app.kubernetes.io/instance: {{ .Release.Name | quote }}, app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}, app.kubernetes.io/managed-by: {{ .Release.Service | quote }}, helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}}
{{- end -}}
{{- define "tracer.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}
