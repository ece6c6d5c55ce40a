package kubernetes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestObjectsSelectThePods checks that the Service, the PodDisruptionBudget and the NetworkPolicy select the pods of the Deployment, and that
// the ServiceMonitor selects the Service.
func TestObjectsSelectThePods(t *testing.T) {
	t.Parallel()
	m := deployedManifests(t)
	template := m.deployment.Spec.Template
	pods := labels.Set(template.Labels)
	for name, selector := range map[string]*meta.LabelSelector{
		"Deployment": m.deployment.Spec.Selector, "PodDisruptionBudget": m.budget.Spec.Selector, "NetworkPolicy": &m.network.Spec.PodSelector,
		"topologySpreadConstraints": template.Spec.TopologySpreadConstraints[0].LabelSelector,
		"Service":                   {MatchLabels: m.service.Spec.Selector},
	} {
		if !matches(t, selector, pods) {
			t.Errorf("the selector %v of the %s does not select pods with %v", selector, name, pods)
		}
	}
	if !matches(t, &m.monitor.Spec.Selector, m.service.Labels) {
		t.Errorf("the ServiceMonitor selects %v, the Service has %v", m.monitor.Spec.Selector, m.service.Labels)
	}
	for _, object := range []meta.Object{m.deployment, m.service, m.settings, m.budget, m.network, m.monitor} {
		if object.GetNamespace() != "dispatcher" {
			t.Errorf("%s is in the namespace %q", object.GetName(), object.GetNamespace())
		}
	}
}

// matches reports whether a selector selects something with these labels. A selector without a label matches nothing
// here, because it would match everything in a cluster.
func matches(t *testing.T, selector *meta.LabelSelector, podLabels labels.Set) bool {
	t.Helper()
	parsed, err := meta.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return len(selector.MatchLabels) > 0 && parsed.Matches(podLabels)
}

// TestPortsAreThoseOfTheContainer checks that every named port exists in the container, and that the operators' port serves the metrics.
func TestPortsAreThoseOfTheContainer(t *testing.T) {
	t.Parallel()
	m := deployedManifests(t)
	container := m.deployment.Spec.Template.Spec.Containers[0]
	numbers := map[string]int32{}
	for _, port := range container.Ports {
		numbers[port.Name] = port.ContainerPort
	}
	var named []string
	for _, port := range m.service.Spec.Ports {
		named = append(named, port.TargetPort.StrVal)
	}
	for _, rule := range m.network.Spec.Ingress {
		named = append(named, rule.Ports[0].Port.StrVal)
	}
	named = append(named, container.LivenessProbe.HTTPGet.Port.StrVal, container.ReadinessProbe.HTTPGet.Port.StrVal, m.monitor.Spec.Endpoints[0].Port)
	for _, name := range named {
		if numbers[name] == 0 {
			t.Errorf("the container has no port %q", name)
		}
	}
	for name, want := range map[string]string{"devices": m.settings.Data["DISPATCHER_HTTP_LISTEN"], "operators": m.settings.Data["DISPATCHER_OPERATOR_LISTEN"]} {
		if want != fmt.Sprintf(":%d", numbers[name]) {
			t.Errorf("the port %s is %d, the dispatcher listens on %s", name, numbers[name], want)
		}
	}
	if exposed := findMatch(t, "Dockerfile", `(?m)^EXPOSE (\d+)$`); exposed != fmt.Sprint(numbers["devices"]) {
		t.Errorf("the image exposes %s, not %d", exposed, numbers["devices"])
	}
}

// TestSettingsExist checks each variable against docs/configuration.md, and against docker-compose.yml, if it also has
// the variable. No secret has a value in the manifests.
func TestSettingsExist(t *testing.T) {
	t.Parallel()
	m := deployedManifests(t)
	settings, compose := readFile(t, root+"/docs/configuration.md"), readFile(t, root+"/docker-compose.yml")
	container := m.deployment.Spec.Template.Spec.Containers[0]
	if len(container.Env) > 0 || len(container.EnvFrom) != 1 {
		t.Errorf("the settings are in the ConfigMap alone, but the container has %v", container.Env)
	}
	for name, value := range m.settings.Data {
		secret, isFile := strings.CutSuffix(name, "_FILE")
		row := regexp.MustCompile("(?m)^\\| `" + secret + "` \\|[^|]*\\|([^|]*)\\|").FindStringSubmatch(settings)
		file := secretPath + "/" + strings.ToLower(strings.TrimPrefix(secret, "DISPATCHER_"))
		switch {
		case row == nil:
			t.Errorf("docs/configuration.md has no %s", name)
		case isFile && (strings.TrimSpace(row[1]) != "secret" || value != file):
			t.Errorf("%s=%s; want the file %s of a secret", name, value, file)
		case !isFile && strings.TrimSpace(row[1]) == "secret":
			t.Errorf("%s has a value", name)
		}
		other := regexp.MustCompile(`(?m)^    ` + name + `: (.*)$`).FindStringSubmatch(compose)
		if other != nil && !strings.Contains(other[1], "$") && other[1] != value {
			t.Errorf("%s is %q here and %q in docker-compose.yml", name, value, other[1])
		}
	}
	for _, needed := range []string{"DISPATCHER_POSTGRES_DSN_FILE", "DISPATCHER_REDIS_URL_FILE", "DISPATCHER_ADMIN_TOKEN_FILE"} {
		if m.settings.Data[needed] == "" {
			t.Errorf("no %s", needed)
		}
	}
}

// TestTheSecretIsThatOfThePage checks the files to which the settings refer: the command in docs/operations.md must put the same files into
// the secret.
func TestTheSecretIsThatOfThePage(t *testing.T) {
	t.Parallel()
	m := deployedManifests(t)
	volumes := m.deployment.Spec.Template.Spec.Volumes
	name := volumes[slices.IndexFunc(volumes, func(v core.Volume) bool { return v.Name == "secrets" })].Secret.SecretName
	command := findMatch(t, "docs/operations.md", `(?s)kubectl create secret generic (`+name+` .*?)\n[a-z`+"`"+`#]`)
	var created, used []string
	for _, found := range regexp.MustCompile(`--from-file=(\w+)`).FindAllStringSubmatch(command, -1) {
		created = append(created, found[1])
	}
	for setting, value := range m.settings.Data {
		if strings.HasSuffix(setting, "_FILE") {
			used = append(used, strings.TrimPrefix(value, secretPath+"/"))
		}
	}
	slices.Sort(created)
	slices.Sort(used)
	if !slices.Equal(created, used) {
		t.Errorf("the page creates %q, the settings use %q", created, used)
	}
}

// TestPodsAreConfinedAsElsewhere compares the confinement and the limits of the pods with the image, with
// docker-compose.yml and with the systemd unit.
func TestPodsAreConfinedAsElsewhere(t *testing.T) {
	t.Parallel()
	m := deployedManifests(t)
	pod := m.deployment.Spec.Template.Spec
	container, context := pod.Containers[0], pod.SecurityContext
	own := container.SecurityContext
	const nonroot = 65532 // the user of the base image with the tag nonroot
	if image := findMatch(t, "Dockerfile", `(?m)^USER (\w+)$`); image != "nonroot" || *context.RunAsUser != nonroot || !*context.RunAsNonRoot || *context.FSGroup != nonroot {
		t.Errorf("the image runs as %s, the pods as %d", image, *context.RunAsUser)
	}
	if !*own.ReadOnlyRootFilesystem || *own.AllowPrivilegeEscalation || !slices.Equal(own.Capabilities.Drop, []core.Capability{"ALL"}) || *pod.AutomountServiceAccountToken {
		t.Errorf("%+v", own)
	}
	if grace := findMatch(t, "docker-compose.yml", `(?m)^  stop_grace_period: (\d+)s # the dispatcher`); fmt.Sprint(*pod.TerminationGracePeriodSeconds) != grace {
		t.Errorf("%d s to stop, %s s in docker-compose.yml", *pod.TerminationGracePeriodSeconds, grace)
	}
	if pause := container.Lifecycle.PreStop.Sleep.Seconds; pause+10 >= *pod.TerminationGracePeriodSeconds {
		t.Errorf("after a pause of %d s, the dispatcher needs up to 10 s", pause)
	}
	if memory := findMatch(t, "deploy/systemd/dispatcher.service", `(?m)^MemoryMax=(\w+)$`) + "i"; container.Resources.Limits.Memory().String() != memory {
		t.Errorf("memory %v, %s in the unit", container.Resources.Limits.Memory(), memory)
	}
	if !container.Resources.Limits.Cpu().IsZero() || pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
		t.Errorf("a limit of the CPU (%v), or variables of other Services", container.Resources.Limits.Cpu())
	}
	if *m.deployment.Spec.Replicas != 2 || m.budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%d replicas, of which %v may be unavailable", *m.deployment.Spec.Replicas, m.budget.Spec.MaxUnavailable)
	}
	page := readFile(t, pageOfOps)
	for _, probe := range []*core.Probe{container.LivenessProbe, container.ReadinessProbe} {
		if !strings.Contains(page, "- `"+probe.HTTPGet.Path+"` is ") {
			t.Errorf("docs/operations.md does not describe %s", probe.HTTPGet.Path)
		}
	}
}

// findMatch returns the first group of a pattern in a file of the repository.
func findMatch(t *testing.T, file, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(readFile(t, root+"/"+file))
	if found == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return found[1]
}
