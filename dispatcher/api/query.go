package api

import (
	"net/http"
	"net/url"

	"github.com/danielgtaylor/huma/v2"
)

// wholeQuery refuses a query of which a part would count for nothing. (Names
// that an operation does not know are refused where its query is read.)
func wholeQuery(ctx huma.Context, next func(huma.Context)) error {
	asked := ctx.URL()
	if err := checkQuery(ctx.Operation().Parameters, asked.RawQuery); err != nil {
		return err
	}
	next(ctx)
	return nil
}

func checkQuery(known []*huma.Param, raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return problem(http.StatusBadRequest, codeInvalidRequest, "query: "+err.Error())
	}
	for _, p := range known {
		values := query[p.Name]
		switch {
		case p.In != "query" || p.Schema.Type == huma.TypeArray:
		case len(values) > 1:
			return invalid("query.%s: given %d times, takes one value", p.Name, len(values))
		case len(values) == 1 && values[0] == "" && p.Schema.Type == huma.TypeBoolean:
			return invalid("query.%s: true or false", p.Name)
		}
	}
	return nil
}
