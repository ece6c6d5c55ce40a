package web

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// TestFormsHaveTheRulesOfTheAPI checks that every field that the API accepts has an input with the rules of its tags: the bounds, the
// values and the default. If a field is added to NewBatch, BatchPatch, PoolSettings or PoolPatch, the test fails until the form has an
// input for the field.
func TestFormsHaveTheRulesOfTheAPI(t *testing.T) {
	t.Parallel()
	shown := objectForm{Values: url.Values{}}
	pool, err := (&poolPages{pageSender: newPageSender(Options{})}).loadCreatePage(httptest.NewRequest(http.MethodGet, "/new-pool", http.NoBody))
	must.Succeed(t, err)
	newPool, _ := pool.data.(map[string]any)
	newPool["Admin"] = true
	changedPool := map[string]any{"Admin": true, "Form": shown, "Pool": operators.Pool{}, "Back": ""}
	changedBatch := map[string]any{"Operator": true, "Form": shown, "Batch": shownBatch{}, "Back": ""}

	expectInputs(t, batchCreationFields(), operators.NewBatch{}, renderForm(t, "batch-new", &batchForm{Values: defaultBatchFormValues(), Operator: true}),
		"limits", "finish_inside", "abort", "devices", "tasks", "select")
	expectInputs(t, batchChangeFields(), operators.BatchPatch{}, renderForm(t, "batch-edit", changedBatch), "limits")
	expectInputs(t, poolFields(), operators.PoolSettings{}, renderForm(t, "pool-new", newPool), "limits", "paused")
	expectInputs(t, poolFields(), operators.PoolPatch{}, renderForm(t, "pool-edit", changedPool), "limits", "paused")
}

func renderForm(t *testing.T, templateName string, data any) (html string) {
	t.Helper()
	var text strings.Builder
	must.Succeed(t, newPageSender(Options{}).set.ExecuteTemplate(&text, templateName, map[string]any{"Data": data}))
	return text.String()
}

// expectInputs checks that html has an input for each field of the type of object, with the rules of the field's tags. withoutRow lists the
// fields of object that have no row in the form's table (the parameter fields).
func expectInputs[T any](t *testing.T, fields formFields[T], object any, html string, withoutRow ...string) {
	t.Helper()
	rows := map[string]formField[T]{}
	for _, row := range fields {
		rows[row.name] = row
	}
	for field := range reflect.TypeOf(object).Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		row, ok := rows[name]
		if delete(rows, name); ok == slices.Contains(withoutRow, name) {
			t.Errorf("%T: the table of the form has a row for %s: %t, want %t", object, name, ok, !ok)
		}
		if ok {
			expectRules(t, row, field.Tag, html)
		}
	}
	for name := range rows {
		t.Errorf("%T has no field %s", object, name)
	}
}

// expectRules checks that the input of this row in html has the rules in tag, which is the tag of the row's field.
func expectRules[T any](t *testing.T, row formField[T], tag reflect.StructTag, html string) {
	t.Helper()
	element := regexp.MustCompile(`<(input|textarea|select)[^>]* name="` + row.input + `"[^>]*>`).FindString(html)
	if element == "" {
		t.Errorf("the form has no input %s", row.input)
	}
	attribute := func(name string) string {
		found := regexp.MustCompile(` ` + name + `="([^"]*)"`).FindStringSubmatch(element)
		return append(found, "", "")[1]
	}
	rules := map[string]string{"min": "minimum", "max": "maximum", "maxlength": "maxLength"}
	if strings.HasSuffix(row.name, "_ms") { // the input is text, such as 5m
		rules = nil
	}
	for name, ofAPI := range rules {
		if got, want := attribute(name), tag.Get(ofAPI); got != want {
			t.Errorf("%s: %s is %q, want %q", row.input, name, got, want)
		}
	}
	isSelect := strings.HasPrefix(element, "<select")
	if hasEnum := tag.Get("enum") != ""; hasEnum != isSelect {
		t.Errorf("%s: is a select element: %t, want %t", row.input, isSelect, hasEnum)
	}
	if isSelect {
		expectOptions(t, row.input, tag, html[strings.Index(html, element):])
		return
	}
	for _, text := range []string{attribute("value"), attribute("placeholder")} {
		value, err := row.parse(text)
		if want := tag.Get("default"); text != "" && want != "" && (err != nil || fmt.Sprint(value) != want) {
			t.Errorf("%s: shows %s, want %s", row.input, text, want)
		}
	}
}

// expectOptions checks that the options of the first select element in html are the values in tag. The empty option is the default.
func expectOptions(t *testing.T, input string, tag reflect.StructTag, html string) {
	t.Helper()
	options, _, _ := strings.Cut(html, "</select>")
	var values []string
	for _, option := range regexp.MustCompile(`<option value="([^"]*)"`).FindAllStringSubmatch(options, -1) {
		if value := option[1]; value != "" {
			values = append(values, value)
		} else if tag.Get("default") != "" {
			values = append(values, tag.Get("default"))
		}
	}
	want := strings.Split(tag.Get("enum"), ",")
	if slices.Sort(values); !slices.Equal(values, slices.Sorted(slices.Values(want))) {
		t.Errorf("%s: the options are %q, want %q", input, values, want)
	}
}
