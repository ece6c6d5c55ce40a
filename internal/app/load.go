package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
)

// Load builds the configuration from the defaults, the YAML file, the environment and the flags that were set. Later sources override
// earlier ones. An empty value counts as not set. Unknown names are errors, so that a misspelt setting never silently keeps its default.
// yamlText is the content of the YAML file, environ has the format of os.Environ, and flagValues has the values of the flags by the key of
// their setting.
//
// Errors name settings. They never quote a secret, or a value that may be a secret by mistake.
func Load(yamlText []byte, environ []string, flagValues map[string]string) (Config, error) {
	k := koanf.New("\x00") // the delimiter never occurs: keys are flat names, not paths
	inFile, err := parseFile(yamlText)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration file: %w", err)
	}
	env, err := readEnvironment(environ)
	if err != nil {
		return Config{}, err
	}
	set, err := readFlags(flagValues)
	if err != nil {
		return Config{}, err
	}
	for _, layer := range []map[string]any{settingDefaults(), inFile, env, set} {
		if err := k.Load(confmap.Provider(layer, ""), nil); err != nil {
			return Config{}, fmt.Errorf("configuration: %w", err)
		}
	}
	return decodeConfig(k)
}

// decodeConfig converts the loaded settings to a Config and validates it.
func decodeConfig(loaded *koanf.Koanf) (Config, error) {
	var c Config
	if err := checkDurations(loaded); err != nil {
		return Config{}, err
	}
	err := loaded.UnmarshalWithConf("", &c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: &c, ErrorUnused: true, TagName: "koanf",
		DecodeHook: mapstructure.StringToTimeDurationHookFunc(),
	}})
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, c.Validate()
}

// checkDurations returns an error for each duration that is invalid. It quotes no value, because the value may be a secret by mistake.
func checkDurations(loaded *koanf.Koanf) error {
	var errs []error
	for _, s := range Settings() {
		if s.Max == 0 {
			continue
		}
		if _, err := time.ParseDuration(loaded.String(s.Key)); err != nil {
			errs = append(errs, fmt.Errorf("%s: must be a duration with its unit, such as %s", s.Key, s.Default))
		}
	}
	return errors.Join(errs...)
}

func settingDefaults() (valueBySetting map[string]any) {
	values := make(map[string]any)
	for _, s := range Settings() {
		values[s.Key] = s.Default
	}
	return values
}

// parseFile reads yamlText, the content of the YAML file, which must be one mapping from settings to strings.
func parseFile(yamlText []byte) (valueByKey map[string]any, err error) {
	content, err := yaml.Parser().Unmarshal(yamlText)
	if err != nil {
		return nil, redactedYAMLError(err)
	}
	values := make(map[string]any)
	for key, value := range content {
		if !slices.ContainsFunc(Settings(), func(s Setting) bool { return s.Key == key }) {
			return nil, fmt.Errorf("%q: no such setting", key)
		}
		switch v := value.(type) {
		case nil:
		case string:
			setIfNonEmpty(values, key, v)
		case int:
			if v != 0 { // refused, because 10 has no unit, and YAML reads the password 0755 as 493
				return nil, fmt.Errorf("%s: must not be a bare number; give a duration its unit (10s), and put other numbers in quotes", key)
			}
			setIfNonEmpty(values, key, "0")
		default:
			return nil, fmt.Errorf("%s: must be a string; put values such as 123, true or a date in quotes", key)
		}
	}
	return values, nil
}

// redactedYAMLError returns an error with only the line number, because the parser's error quotes the file.
func redactedYAMLError(err error) error {
	const what = "must be a YAML mapping of settings to values"
	if line := regexp.MustCompile(`line \d+`).FindString(err.Error()); line != "" {
		return fmt.Errorf("%s: %s", line, what)
	}
	return errors.New(what)
}

// readEnvironment returns the settings of the DISPATCHER_ variables, by key. It ignores the variables that Kubernetes injects.
func readEnvironment(environ []string) (valueByKey map[string]any, err error) {
	values, sources := make(map[string]any), make(map[string]string)
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		short, ours := strings.CutPrefix(name, envPrefix)
		if !ours || isKnownNonSetting(short) {
			continue
		}
		s, isFile, ok := settingOfVariable(name)
		if !ok {
			return nil, fmt.Errorf("%s: no such setting", name)
		}
		if value == "" {
			continue
		}
		if other := sources[s.Key]; other != "" && other != name {
			return nil, fmt.Errorf("%s: set both as a value and as a file", s.Env())
		}
		sources[s.Key] = name
		if isFile {
			var err error
			if value, err = readSecret(value); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		values[s.Key] = value
	}
	return values, nil
}

// isKnownNonSetting reports whether the variable DISPATCHER_ + suffix is known, but is not a setting. The operators'
// commands, `dispatcher run` or Kubernetes use such a variable.
func isKnownNonSetting(suffix string) bool {
	return strings.HasPrefix(suffix, "PORT") || strings.HasPrefix(suffix, "SERVICE_") ||
		slices.Contains([]string{"URL", "TOKEN", "TOKEN_FILE", "POOL", "SLOT", "LEASE"}, suffix) // variables of the commands, and of `run`
}

// settingOfVariable returns the setting that an environment variable sets. isFile is true if the variable contains the
// path of a file with the secret.
func settingOfVariable(variable string) (setting Setting, isFile, ok bool) {
	for _, setting := range Settings() {
		switch {
		case variable == setting.Env():
			return setting, false, true
		case setting.Secret && variable == setting.Env()+"_FILE":
			return setting, true, true
		}
	}
	return Setting{}, false, false
}

// readSecret returns the content of the file at path. Its errors do not contain the path, because a user may have set the
// secret itself instead of a path.
func readSecret(path string) (secret string, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return "", fmt.Errorf("reading the file: %w", err)
	}
	value := strings.TrimSpace(string(content))
	if value == "" {
		return "", errors.New("the file is empty")
	}
	return value, nil
}

func readFlags(flagValues map[string]string) (valueByKey map[string]any, err error) {
	values := make(map[string]any, len(flagValues))
	for name, value := range flagValues {
		i := slices.IndexFunc(Settings(), func(s Setting) bool { return s.Flag() == name && !s.Secret })
		if i < 0 {
			return nil, fmt.Errorf("--%s: no such setting", name)
		}
		setIfNonEmpty(values, Settings()[i].Key, value)
	}
	return values, nil
}

// setIfNonEmpty sets values[key] to value. If value is empty, it keeps the value of an earlier source.
func setIfNonEmpty(values map[string]any, key, value string) {
	if value != "" {
		values[key] = value
	}
}
