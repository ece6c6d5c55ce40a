package web

import (
	"maps"
	"net/http"
	"net/url"

	"github.com/fleetslots/dispatcher/operators"
)

// objectForm is the form for the settings of a pool, a batch or a profile.
type objectForm struct {
	url.Values // texts of the inputs

	Was  url.Values  // present texts of the object, which the form contains in hidden inputs
	Rows []policyRow // rows of the policies
}

// newObjectForm returns the form for an object. inputTexts has the present texts of its inputs, and policies are its policies. If the form is
// shown again, the inputs that the visitor changed keep the visitor's text.
func newObjectForm(r *http.Request, inputTexts url.Values, policies []operators.Policy) objectForm {
	form := objectForm{Values: url.Values{}, Was: inputTextsWithPolicies(inputTexts, policies), Rows: appendEmptyRows(policyRows(policies))}
	maps.Copy(form.Values, inputTexts)
	again := formInputOf(r)
	if again == nil {
		return form
	}
	for input := range inputTexts { // a browser sends nothing for a checkbox that is not chosen
		if again.values.Has("was."+input) && !again.values.Has(input) {
			form.Del(input)
		}
	}
	for input, texts := range again.values {
		if !isUnchanged(again.values, input) {
			form.Values[input] = texts
		}
	}
	if rows := enteredRows(again.values); len(rows) > 0 && rowsText(rows) != again.values.Get("was.limits") {
		form.Rows = rows
	}
	return form
}

// inputTextsWithPolicies returns inputTexts, the present texts of the inputs of a form, with one text for all policies. This text serves only
// to compare them.
func inputTextsWithPolicies(inputTexts url.Values, policies []operators.Policy) url.Values {
	texts := url.Values{"limits": {rowsText(policyRows(policies))}}
	maps.Copy(texts, inputTexts)
	return texts
}

// changedSettings returns the settings that the visitor changed in a submitted form, by their names in the API. current has the present
// texts.
func changedSettings[T any](form url.Values, fields formFields[T], current url.Values) (valueByField map[string]any, err error) {
	change, err := fields.changedFields(form, current)
	if err != nil || !form.Has("limit.name") || rowsText(enteredRows(form)) == originalText(form, "limits", current.Get("limits")) {
		return change, err
	}
	change["limits"], err = readPolicies(form)
	return change, err
}
