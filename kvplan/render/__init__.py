"""Results as bytes: `document` says what is shown, each format only how it is written.

::

    Report ──► Document ──► terminal.render, markdown.render, html.render
       └─────► json.render      (the contract, see kvplan.report)
"""
