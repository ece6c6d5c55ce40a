package web

import (
	"context"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
)

// keptForm is the input of a form that was not carried out. The next page carries it in hidden inputs, so no replica stores it. A POST with
// these inputs shows the form again and does nothing else.
type keptForm struct {
	Next  string // path of the page of the form
	Input string // encoded input; empty if there is none
	Lost  string // which input is not kept, as a sentence; empty if all is kept
}

// keepFormInput returns the input of the form that r submits. If the form has no page of its own, such as a single button, the returned
// input is empty and Next is the page with the button.
func (s *site) keepFormInput(r *http.Request) (kept keptForm) {
	err := r.ParseMultipartForm(maxFormBytes)
	if from, refererErr := url.Parse(r.Referer()); !s.hasFormPage(r) {
		kept.Next = "/"
		if refererErr == nil {
			kept.Next = localPathOrRoot(strings.TrimPrefix(from.RequestURI(), s.prefix))
		}
		return kept
	}
	kept.Next, kept.Input = localPathOrRoot(r.URL.RequestURI()), r.PostForm.Encode()
	if r.PostForm.Has("kept") { // the form was kept before
		kept.Input = r.PostForm.Get("kept")
	}
	const maxKept = maxFormBytes - 64<<10 // leaves space for the other inputs of the next form
	switch {
	case err != nil && !errors.Is(err, http.ErrNotMultipart) || len(kept.Input) > maxKept:
		kept.Input, kept.Lost = "", "The input is too large to be kept."
	case r.MultipartForm != nil && len(r.MultipartForm.File["file"]) > 0 && r.MultipartForm.File["file"][0].Size > 0:
		kept.Lost = "A file cannot be kept: choose " + r.MultipartForm.File["file"][0].Filename + " again."
	}
	return kept
}

// hasFormPage reports whether there is a page at the address of r, a request that submits a form.
func (s *site) hasFormPage(r *http.Request) (found bool) {
	_, pattern := s.pages.Handler(&http.Request{Method: http.MethodGet, URL: r.URL})
	return strings.HasPrefix(pattern, http.MethodGet+" ")
}

// formInput is the input of a form whose page is shown again.
type formInput struct {
	values  url.Values
	failure error // why the form was not carried out; nil if it was not tried
}

// formInputKey is the context key of the formInput of a request for a page.
type formInputKey struct{}

// withFormInput returns a copy of r, a request for the page of a form. The page answers the copy with the form filled with input.
func withFormInput(r *http.Request, input formInput) *http.Request {
	return r.Clone(context.WithValue(r.Context(), formInputKey{}, &input))
}

// formInputOf returns the input with which the requested page shows its form, or nil (see withFormInput).
func formInputOf(r *http.Request) *formInput {
	again, _ := r.Context().Value(formInputKey{}).(*formInput)
	return again
}

// showFormAgain answers r, which submits a form, with the page of the form, filled with input. If the form has no page, showFormAgain
// returns false and answers nothing.
func (s *site) showFormAgain(rw http.ResponseWriter, r *http.Request, input formInput) (isShown bool) {
	if !s.hasFormPage(r) {
		return false
	}
	get := withFormInput(r, input)
	get.Method, get.Body, get.Form, get.PostForm, get.MultipartForm = http.MethodGet, http.NoBody, nil, nil, nil
	s.pages.ServeHTTP(rw, get)
	return true
}

// refuseForm answers a submitted form that was not carried out because of cause. It shows the page of the form again, with the input and
// cause.
func (s *site) refuseForm(rw http.ResponseWriter, r *http.Request, cause error) {
	if !s.showFormAgain(rw, r, formInput{r.PostForm, cause}) {
		s.sendError(rw, r, cause)
	}
}

// renderNotice returns the HTML that tells the visitor why the form is shown again, and the HTTP status of the page.
func (a *formInput) renderNotice(ctx context.Context, f *pageSender) (notice template.HTML, status int) {
	if a.failure == nil {
		return `<p class="note warn" role="status">Nothing was sent yet. The form has your input: check it, and send it.</p>`, http.StatusOK
	}
	text := template.HTMLEscapeString(f.outageText(ctx, a.failure))
	return template.HTML(`<p class="problem" role="alert">` + text + `</p>`), errorStatus(a.failure) //nolint:gosec // escaped
}
