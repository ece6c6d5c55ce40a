package api

// LargeBodies returns how many large request bodies are being read now.
func (a *API) LargeBodies() int { return a.largeTurns.Running() }
