package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/operators"
)

// fieldAnnotation is the key of an annotation that names the API field that a flag sets. A flag has this annotation if
// the field does not follow from the name of the flag. A boolean flag with this annotation sets its field to null.
const fieldAnnotation = "field"

// fieldName returns the name of the API field, or of the query parameter, that the flag sets. For example, --max-attempts
// sets max_attempts. The name of a duration ends in _ms.
func fieldName(flag *pflag.Flag) (apiField string) {
	if annotated := flag.Annotations[fieldAnnotation]; len(annotated) > 0 {
		return annotated[0]
	}
	name := strings.ReplaceAll(flag.Name, "-", "_")
	if flag.Value.Type() == "duration" {
		name += "_ms"
	}
	return name
}

// fieldValue returns the value of the flag in the type that encodes to the JSON of the API. A duration becomes a number of ms.
func fieldValue(flag *pflag.Flag) (value any, err error) {
	text := flag.Value.String()
	switch value := flag.Value.(type) {
	case *jsonFlag:
		return value.readJSON(flag.Name)
	case *model.Duration:
		return time.Duration(*value).Milliseconds(), nil
	case pflag.SliceValue:
		return value.GetSlice(), nil
	}
	switch flag.Value.Type() {
	case "bool":
		if flag.Annotations[fieldAnnotation] != nil {
			return nil, nil //nolint:nilnil // the value is null
		}
		return text == "true", nil
	case "int":
		return json.Number(text), nil
	case "duration":
		d, err := time.ParseDuration(text)
		return d.Milliseconds(), err
	case "string", "time":
		return text, nil
	}
	return flag.Value, nil // a type with a JSON form of its own
}

// requestBody returns the values of the flags that were given, by the names of their fields. It leaves out JSON flags that are empty.
func requestBody(flags *pflag.FlagSet) (body map[string]any, err error) {
	body = map[string]any{}
	flags.VisitAll(func(flag *pflag.Flag) {
		if _, isJSON := flag.Value.(*jsonFlag); !flag.Changed || err != nil || isJSON && flag.Value.String() == "" {
			return
		}
		body[fieldName(flag)], err = fieldValue(flag)
	})
	return body, err
}

// requestQuery returns a query with a parameter for each flag that was given and is not empty.
func requestQuery(flags *pflag.FlagSet) (query url.Values) {
	q := url.Values{}
	flags.VisitAll(func(flag *pflag.Flag) {
		if !flag.Changed || flag.Value.String() == "" {
			return
		}
		if flag.Value.Type() == "stringToString" {
			pairs, _ := flags.GetStringToString(flag.Name)
			for name, value := range pairs {
				q.Add(flag.Name, name+":"+value)
			}
			return
		}
		switch value, _ := fieldValue(flag); value := value.(type) { // only reading the file of a JSON flag can fail
		case []string:
			q.Set(fieldName(flag), strings.Join(value, ","))
		default:
			q.Set(fieldName(flag), fmt.Sprint(value))
		}
	})
	return q
}

// changedSettingsBody returns the body of a request that changes the settings for which the command has flags. It fails if no flag was given.
func changedSettingsBody(command *cobra.Command) (map[string]any, error) {
	flags := command.LocalNonPersistentFlags()
	body, err := requestBody(flags)
	if err == nil && len(body) == 0 {
		var names []string
		flags.VisitAll(func(flag *pflag.Flag) {
			if flag.Name != "help" {
				names = append(names, "--"+flag.Name)
			}
		})
		err = usageError{fmt.Errorf("nothing to change: give at least one of %s", strings.Join(names, ", "))}
	}
	return body, err
}

// addClearFlag adds the boolean flag clearFlag, which sets a field to null. The flag valueFlag sets the same field to a
// value. A user may give only one of the two flags.
func addClearFlag(command *cobra.Command, clearFlag, valueFlag, help string) {
	flags := command.Flags()
	flags.Bool(clearFlag, false, help)
	_ = flags.SetAnnotation(clearFlag, fieldAnnotation, []string{fieldName(flags.Lookup(valueFlag))}) // fails only for a flag that does not exist
	command.MarkFlagsMutuallyExclusive(valueFlag, clearFlag)
}

// jsonFlag is a flag whose value is JSON, or @FILE, where FILE contains JSON. Only the server validates the content of
// the JSON.
type jsonFlag string

// String returns the flag as it was given.
func (j *jsonFlag) String() string { return string(*j) }

// Set stores text. If text names a file, Set does not read the file yet.
func (j *jsonFlag) Set(text string) error {
	*j = jsonFlag(text)
	return nil
}

func (j *jsonFlag) Type() string { return "string" }

// readJSON returns the JSON, from the file if the flag names one. flagName is the name of the flag, for errors.
func (j *jsonFlag) readJSON(flagName string) (json.RawMessage, error) {
	value := []byte(*j)
	if file, ok := strings.CutPrefix(string(*j), "@"); ok {
		var err error
		if value, err = os.ReadFile(file); err != nil {
			return nil, usageError{fmt.Errorf("--%s: %w", flagName, err)}
		}
	}
	if !json.Valid(value) {
		return nil, usageError{fmt.Errorf("--%s: not JSON; to name a file, put @ before it", flagName)}
	}
	return value, nil
}

// addFieldFlags adds a flag to command for each field of object that has the struct tag `flag`, and returns the set of these flags.
// object is a struct of the API. The tag `flag` contains the help of the flag. The tag `enum` contains the values that the shell
// completes.
func addFieldFlags(command *cobra.Command, object any) *pflag.FlagSet {
	added := pflag.NewFlagSet("", pflag.ContinueOnError)
	for field, value := range reflect.ValueOf(object).Fields() {
		help, ok := field.Tag.Lookup("flag")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(cmp.Or(field.Tag.Get("json"), field.Tag.Get("query")), ",")
		name, isDuration := strings.CutSuffix(name, "_ms")
		name = strings.ReplaceAll(name, "_", "-")
		switch value := value.Interface().(type) {
		case int, operators.Change[int]:
			added.Int(name, 0, help)
		case bool, *bool:
			added.Bool(name, field.Tag.Get("default") == "true", help)
		case time.Time:
			added.Var(&timeFlag{value}, name, help)
		case []string:
			added.StringSlice(name, nil, help)
		case json.RawMessage, []operators.Policy, operators.Change[[]operators.Policy]:
			added.Var(new(jsonFlag), name, help)
		case []operators.Window, operators.Change[[]operators.Window]:
			added.Var(new(windowsFlag), "window", help)
			_ = added.SetAnnotation("window", fieldAnnotation, []string{name}) // cannot fail: the flag exists
		default: // text, a time, a number of ms, or the id of an object
			if isDuration {
				added.Duration(name, 0, help)
			} else {
				added.String(name, "", help)
			}
		}
		command.Flags().AddFlagSet(added)
		if values := field.Tag.Get("enum"); values != "" {
			completeFlagValues(command, name, strings.Split(values, ",")...)
		}
	}
	return added
}
