package app

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
)

const envPrefix = "DISPATCHER_"

// Load builds the configuration: defaults, then the YAML file, then the
// environment, then the flags that were set. Unknown names are errors; so a
// misspelt setting never silently keeps its default. file is the content of
// the YAML file, environ as of os.Environ.
func Load(file []byte, environ []string, flags map[string]string) (Config, error) {
	k := koanf.New("\x00") // keys are flat: nothing is a path
	defaults := make(map[string]any)
	for _, s := range Settings() {
		defaults[s.Key] = s.Default
	}
	env, err := fromEnvironment(environ)
	if err != nil {
		return Config{}, err
	}
	inFile, err := yaml.Parser().Unmarshal(file)
	if err != nil {
		return Config{}, fmt.Errorf("configuration file: %w", err)
	}
	for _, layer := range []map[string]any{defaults, inFile, env, widen(flags)} {
		if err := k.Load(confmap.Provider(layer, ""), nil); err != nil {
			return Config{}, fmt.Errorf("configuration: %w", err)
		}
	}
	return decode(k)
}

func decode(k *koanf.Koanf) (Config, error) {
	for _, key := range k.Keys() {
		if !slices.ContainsFunc(Settings(), func(s Setting) bool { return s.Key == key }) {
			return Config{}, fmt.Errorf("%s: no such setting", key)
		}
	}
	var c Config
	err := k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: &c, WeaklyTypedInput: true, ErrorUnused: true, TagName: "koanf",
		DecodeHook: mapstructure.StringToTimeDurationHookFunc(),
	}})
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, c.Validate()
}

// fromEnvironment takes the DISPATCHER_ variables. Those that Kubernetes
// injects for a service named dispatcher are no settings.
func fromEnvironment(environ []string) (map[string]any, error) {
	values := make(map[string]any)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		short, ours := strings.CutPrefix(name, envPrefix)
		if !ours || injected(short) {
			continue
		}
		key, value, err := setting(short, value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, twice := values[key]; twice {
			return nil, fmt.Errorf("%s: given both as value and as file", name)
		}
		values[key] = value
	}
	return values, nil
}

func injected(short string) bool {
	return strings.HasPrefix(short, "PORT") || strings.HasPrefix(short, "SERVICE_") ||
		short == "URL" || short == "TOKEN" // those of the command line
}

// setting resolves one variable; a secret may be named by a file.
func setting(short, value string) (key, resolved string, err error) {
	key = strings.ToLower(short)
	known := func(key string) *Setting {
		for _, s := range Settings() {
			if s.Key == key {
				return &s
			}
		}
		return nil
	}
	if known(key) != nil {
		return key, value, nil
	}
	secret, isFile := strings.CutSuffix(key, "_file")
	if s := known(secret); !isFile || s == nil || !s.Secret {
		return "", "", errors.New("no such setting")
	}
	content, err := os.ReadFile(value)
	if err != nil {
		return "", "", err
	}
	return secret, strings.TrimSpace(string(content)), nil
}

func widen(flags map[string]string) map[string]any {
	values := make(map[string]any, len(flags))
	for name, value := range flags {
		values[strings.ReplaceAll(name, "-", "_")] = value
	}
	return values
}
