"""The page: controls, the tabs, and the JavaScript that draws traces. The only folder that imports gradio."""
