package kubernetes

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const (
	root       = "../../.."
	base       = root + "/deploy/kubernetes"
	pageOfOps  = root + "/docs/operations.md"
	secretPath = "/etc/dispatcher/secrets"
)

// manifests has the objects of a folder, one of each kind.
type manifests struct {
	deployment *apps.Deployment
	service    *core.Service
	settings   *core.ConfigMap
	budget     *policy.PodDisruptionBudget
	network    *networking.NetworkPolicy
	monitor    *monitoring.ServiceMonitor
}

// renderManifests returns the manifests of a folder as kustomize writes them, each as YAML.
func renderManifests(t *testing.T, files filesys.FileSystem, folder string) (texts []string) {
	t.Helper()
	options := krusty.MakeDefaultOptions()
	resources, err := krusty.MakeKustomizer(options).Run(files, folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	for _, resource := range resources.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

// decode returns the object of a manifest. An unknown field, or a field that is set twice, is an error.
func decode(text string) (runtime.Object, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme, networking.AddToScheme, policy.AddToScheme, monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	object, _, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer().Decode([]byte(text), nil, nil)
	return object, err
}

// loadManifests decodes all manifests. They must be one of each kind.
func loadManifests(t *testing.T, texts []string) (m manifests) {
	t.Helper()
	for _, text := range texts {
		object, err := decode(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		switch o := object.(type) {
		case *apps.Deployment:
			m.deployment = o
		case *core.Service:
			m.service = o
		case *core.ConfigMap:
			m.settings = o
		case *policy.PodDisruptionBudget:
			m.budget = o
		case *networking.NetworkPolicy:
			m.network = o
		case *monitoring.ServiceMonitor:
			m.monitor = o
		default:
			t.Fatalf("no test knows %T", object)
		}
	}
	if len(texts) != 6 || m.deployment == nil || m.service == nil || m.settings == nil || m.budget == nil || m.network == nil || m.monitor == nil {
		t.Fatalf("not one object of each kind:\n%s", strings.Join(texts, "---\n"))
	}
	return m
}

func deployedManifests(t *testing.T) manifests {
	t.Helper()
	disk := filesys.MakeFsOnDisk()
	return loadManifests(t, append(renderManifests(t, disk, base), renderManifests(t, disk, filepath.Join(base, "monitoring"))...))
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAMisspeltFieldIsRefused checks that a field which Kubernetes does not know is an error here. A cluster would ignore or refuse it.
func TestAMisspeltFieldIsRefused(t *testing.T) {
	t.Parallel()
	all := strings.Join(append(renderManifests(t, filesys.MakeFsOnDisk(), base), renderManifests(t, filesys.MakeFsOnDisk(), filepath.Join(base, "monitoring"))...), "---\n")
	for right, wrong := range map[string]string{
		"readinessProbe": "readynessProbe", "maxUnavailable: 1": "maxUnavailible: 1", "podSelector": "podsSelector", "scrapeTimeout": "scrapeTimeOut",
		"targetPort": "targetport",
	} {
		refused := false
		for text := range strings.SplitSeq(all, "---\n") {
			if !strings.Contains(text, right) {
				continue
			}
			name, _, _ := strings.Cut(wrong, ":")
			_, err := decode(strings.Replace(text, right, wrong, 1))
			refused = refused || err != nil && strings.Contains(err.Error(), `unknown field "`) && strings.Contains(err.Error(), name+`"`)
		}
		if !refused {
			t.Errorf("%s instead of %s is accepted", wrong, right)
		}
	}
}

// TestTheOverlayOfThePageRenders renders the kustomization in docs/operations.md, with the manifests at the path that
// it names.
func TestTheOverlayOfThePageRenders(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readFile(t, pageOfOps), "\n## Kubernetes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	overlay := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(section)
	if overlay == nil {
		t.Fatalf("%s has no kustomization", pageOfOps)
	}
	const folder = "/overlay"
	files := filesys.MakeFsInMemory()
	write := func(name, text string) {
		if err := files.WriteFile(filepath.Join(folder, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	const withoutBroker = "DISPATCHER_MQTT_USER="
	write("kustomization.yaml", strings.Replace(overlay[1], "literals: [", "literals: ["+withoutBroker+", ", 1))
	for _, name := range []string{"kustomization.yaml", "dispatcher.env", "deployment.yaml", "service.yaml", "disruption.yaml", "network.yaml"} {
		write("dispatcher/deploy/kubernetes/"+name, readFile(t, filepath.Join(base, name)))
	}
	for _, name := range []string{"kustomization.yaml", "servicemonitor.yaml"} {
		write("dispatcher/deploy/kubernetes/monitoring/"+name, readFile(t, filepath.Join(base, "monitoring", name)))
	}
	m := loadManifests(t, renderManifests(t, files, folder))
	if got := m.deployment.Spec.Template.Spec.Containers[0].Image; got != "registry.example/dispatcher:v0.1.0" {
		t.Errorf("image %s", got)
	}
	if got := m.settings.Data["DISPATCHER_MQTT_URL"]; got != "mqtt://mosquitto.mqtt.svc:1884" {
		t.Errorf("DISPATCHER_MQTT_URL=%s", got)
	}
	if got, ok := m.settings.Data["DISPATCHER_MQTT_USER"]; !ok || got != "" {
		t.Errorf("an empty value is rendered as %q", got)
	}
	if name := m.deployment.Spec.Template.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name; name != m.settings.Name {
		t.Errorf("the pods read %s, the settings are in %s", name, m.settings.Name)
	}
}
